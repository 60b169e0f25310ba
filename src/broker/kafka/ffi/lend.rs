//! A producer that reads values where they are: rdkafka's copies each of them when it is handed over.

use std::ffi::CStr;
use std::ptr;

use bytes::Bytes;
use rdkafka::bindings as sys;
use rdkafka::bindings::rd_kafka_vtype_t as vtype;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseProducer, Producer as _, ProducerContext};

use crate::sink::OutputRecord;

/// A producer, and the values that it may still read.
pub(in crate::broker::kafka) struct Lender<C: ProducerContext + 'static> {
    /// The first field: it goes first, after its purge, and with it every thread that reads values.
    producer: BaseProducer<C>,
    /// Values on their way, with some that have arrived.
    lent: Vec<Bytes>,
}

impl<C: ProducerContext> Lender<C> {
    pub fn new(producer: BaseProducer<C>) -> Self {
        Lender { producer, lent: Vec::new() }
    }

    /// The producer, for everything but handing over records.
    pub fn producer(&self) -> &BaseProducer<C> {
        &self.producer
    }

    /// Gives back what was lent, if nothing is on its way.
    pub fn settle(&mut self) {
        if self.producer.in_flight_count() == 0 {
            self.lent.clear();
        }
    }

    /// Hands a record over; `opaque` comes back with its delivery.
    ///
    /// # Errors
    ///
    /// The client does not take the record.
    pub fn send(&mut self, topic: &CStr, record: &OutputRecord, opaque: usize) -> Result<(), RDKafkaErrorCode> {
        let value = record.value.clone();
        let (key, key_len) = record.key.as_ref().map_or((ptr::null(), 0), |key| (key.as_ptr(), key.len()));
        let headers = Headers::new(record)?;
        let memory = |ptr: *const u8, size| sys::rd_kafka_vu_s__bindgen_ty_1 {
            mem: sys::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_1 { ptr: ptr.cast_mut().cast(), size },
        };
        let fields = [
            (vtype::RD_KAFKA_VTYPE_TOPIC, sys::rd_kafka_vu_s__bindgen_ty_1 { cstr: topic.as_ptr() }),
            (vtype::RD_KAFKA_VTYPE_VALUE, memory(value.as_ptr(), value.len())),
            (vtype::RD_KAFKA_VTYPE_KEY, memory(key, key_len)),
            (vtype::RD_KAFKA_VTYPE_OPAQUE, sys::rd_kafka_vu_s__bindgen_ty_1 { ptr: opaque as *mut _ }),
            (
                vtype::RD_KAFKA_VTYPE_TIMESTAMP,
                // 0 is now.
                sys::rd_kafka_vu_s__bindgen_ty_1 {
                    i64_: record.timestamp.and_then(|time| i64::try_from(time).ok()).unwrap_or(0),
                },
            ),
            (vtype::RD_KAFKA_VTYPE_HEADERS, sys::rd_kafka_vu_s__bindgen_ty_1 { headers: headers.0 }),
        ]
        .map(|(vtype, u)| sys::rd_kafka_vu_s { vtype, u });
        let count = fields.len() - usize::from(headers.0.is_null());
        // SAFETY: client, topic, key and headers are alive, and the client copies topic and key. It does not copy the value (no
        // flag says so), which lives in `lent` until nothing is on its way, or the client is gone.
        let error = unsafe {
            let client = self.producer.client().native_ptr();
            let error = sys::rd_kafka_produceva(client, fields.as_ptr(), count);
            match error.is_null() {
                true => None,
                false => {
                    let code = match sys::rd_kafka_error_is_fatal(error) {
                        0 => RDKafkaErrorCode::from(sys::rd_kafka_error_code(error)),
                        _ => RDKafkaErrorCode::Fatal, // the client says why, if it is asked
                    };
                    sys::rd_kafka_error_destroy(error);
                    Some(code)
                }
            }
        };
        match error {
            None => {
                headers.given();
                self.lent.push(value);
                Ok(())
            }
            Some(code) => Err(code),
        }
    }
}

/// Headers in the client's form, which are the client's once it has taken the record.
struct Headers(*mut sys::rd_kafka_headers_t);

impl Headers {
    fn new(record: &OutputRecord) -> Result<Self, RDKafkaErrorCode> {
        if record.headers.is_empty() {
            return Ok(Headers(ptr::null_mut()));
        }
        // SAFETY: makes a list that is ours.
        let headers = Headers(unsafe { sys::rd_kafka_headers_new(record.headers.len()) });
        for (name, value) in &record.headers {
            let size = |len: usize| isize::try_from(len).unwrap_or(isize::MAX); // no slice is longer
            let (value, value_size) =
                value.as_ref().map_or((ptr::null(), 0), |value| (value.as_ptr(), size(value.len())));
            // SAFETY: the list is alive, so are name and value, which the client copies.
            let error = unsafe {
                sys::rd_kafka_header_add(headers.0, name.as_ptr().cast(), size(name.len()), value.cast(), value_size)
            };
            if error != sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
                return Err(error.into());
            }
        }
        Ok(headers)
    }

    fn given(self) {
        std::mem::forget(self);
    }
}

impl Drop for Headers {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the list is ours as long as it was not given away.
            unsafe { sys::rd_kafka_headers_destroy(self.0) }
        }
    }
}
