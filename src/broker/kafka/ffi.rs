//! The queue of a consumer, read without rdkafka's wrapper, with [`lend`] and [`rights`]: the only unsafe code of the adapter.
//!
//! The wrapper leaves out what several topics in one reader need: of an "end of partition" its topic and its offset, and of an
//! error the partition it is about. It also allocates for every message, and panics at header names that are not UTF-8.

use std::borrow::Cow;
use std::ffi::{CStr, c_int};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::bindings as sys;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::Consumer;
use rdkafka::error::RDKafkaErrorCode;

use super::client::KafkaConsumer;
use crate::message::TimestampType;

pub(super) mod lend;
pub(super) mod rights;

/// What a consumer has to say: messages of its partitions, their ends, and errors.
pub(super) struct Queue {
    queue: NonNull<sys::rd_kafka_queue_t>,
    client: Arc<KafkaConsumer>,
}

// SAFETY: librdkafka's queues may be used from any thread; it locks them itself.
unsafe impl Send for Queue {}

impl Queue {
    /// The queue of a consumer; `None` if the client has none, because it has no group.
    pub fn new(client: Arc<KafkaConsumer>) -> Option<Queue> {
        // SAFETY: the client is alive; the reference to the queue that this returns is ours, and is given back by `drop`.
        let queue = unsafe { sys::rd_kafka_queue_get_consumer(client.client().native_ptr()) };
        NonNull::new(queue).map(|queue| Queue { queue, client })
    }

    /// The next event, for which it waits so long (whole milliseconds).
    pub fn poll(&self, wait: Duration) -> Option<Event<'_>> {
        let wait = c_int::try_from(wait.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: the queue lives as long as `self`; the event that this returns is ours, and is given back by its `drop`.
        let event = unsafe { sys::rd_kafka_queue_poll(self.queue.as_ptr(), wait) };
        NonNull::new(event).map(|event| Event { event, queue: PhantomData })
    }

    /// The high watermark of a partition as the newest answer to a fetch told it: behind the newest message, also that of a
    /// transaction that is open. `None` as long as nothing was fetched. Asks nobody.
    pub fn high_watermark(&self, topic: &CStr, partition: i32) -> Option<u64> {
        let (mut low, mut high) = (-1, -1);
        // SAFETY: client and name are alive, and the two numbers are written to before this returns.
        let error = unsafe {
            let client = self.client.client().native_ptr();
            sys::rd_kafka_get_watermark_offsets(client, topic.as_ptr(), partition, &mut low, &mut high)
        };
        match error {
            sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => u64::try_from(high).ok(),
            _ => None,
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: this is the reference that `new` got, and no event borrows the queue any more. The client is still alive.
        unsafe { sys::rd_kafka_queue_destroy(self.queue.as_ptr()) }
    }
}

/// One event of a queue, which owns what is in it.
pub(super) struct Event<'q> {
    event: NonNull<sys::rd_kafka_event_t>,
    queue: PhantomData<&'q Queue>,
}

/// What an event is.
pub(super) enum What<'e> {
    /// A message.
    Message(MessageRef<'e>),
    /// Everything of the partition was given.
    End(Place),
    /// Something went wrong.
    Failed(Failure),
    /// A line of the client's log.
    Log { level: RDKafkaLogLevel, facility: Cow<'e, str>, text: Cow<'e, str> },
    /// Something that nobody here asked for.
    Other,
}

/// Something went wrong with a partition, or with the client.
pub(super) struct Failure {
    pub code: RDKafkaErrorCode,
    pub text: String,
    pub fatal: bool,
    pub place: Option<Place>,
}

/// A partition and an offset in it.
pub(super) struct Place {
    pub topic: String,
    pub partition: i32,
    /// If it is one, not a symbol.
    pub offset: Option<u64>,
}

impl Event<'_> {
    /// What it is. To be called once: a message is given only once.
    pub fn what(&self) -> What<'_> {
        let event = self.event.as_ptr();
        // SAFETY: the event is ours and alive.
        match unsafe { sys::rd_kafka_event_type(event) } {
            sys::RD_KAFKA_EVENT_FETCH => {
                // SAFETY: the message lives in the event, which the result borrows.
                match unsafe { sys::rd_kafka_event_message_next(event).as_ref() } {
                    Some(message) => What::Message(MessageRef { message }),
                    None => What::Other,
                }
            }
            sys::RD_KAFKA_EVENT_ERROR => {
                // SAFETY: the event is ours and alive.
                let code = RDKafkaErrorCode::from(unsafe { sys::rd_kafka_event_error(event) });
                match (code, self.place()) {
                    (RDKafkaErrorCode::PartitionEOF, Some(place)) => What::End(place),
                    (code, place) => {
                        // SAFETY: as above; the text lives in the event, or for ever.
                        let text = unsafe { text(sys::rd_kafka_event_error_string(event)) }.into_owned();
                        // SAFETY: as above.
                        let fatal = unsafe { sys::rd_kafka_event_error_is_fatal(event) } != 0;
                        What::Failed(Failure { code, text, fatal, place })
                    }
                }
            }
            sys::RD_KAFKA_EVENT_LOG => {
                let (mut facility, mut line, mut level) = (ptr::null(), ptr::null(), 0);
                // SAFETY: the event is ours and alive; what is returned is written to before this returns, and the texts live
                // in the event, which the result borrows.
                unsafe {
                    match sys::rd_kafka_event_log(event, &mut facility, &mut line, &mut level) {
                        0 => What::Log { level: log_level(level), facility: text(facility), text: text(line) },
                        _ => What::Other,
                    }
                }
            }
            _ => What::Other,
        }
    }

    /// The partition that an error is about.
    fn place(&self) -> Option<Place> {
        // SAFETY: the event is ours and alive; the partition that this returns is ours.
        let at = NonNull::new(unsafe { sys::rd_kafka_event_topic_partition(self.event.as_ptr()) })?;
        // SAFETY: the partition is alive, and its name is a text that lives in it.
        let (topic, partition, offset) = unsafe {
            let at = at.as_ref();
            (text(at.topic).into_owned(), at.partition, u64::try_from(at.offset).ok())
        };
        // SAFETY: it was made for us, and nothing borrows from it any more.
        unsafe { sys::rd_kafka_topic_partition_destroy(at.as_ptr()) };
        Some(Place { topic, partition, offset })
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: the event is ours, and nothing borrows from it any more.
        unsafe { sys::rd_kafka_event_destroy(self.event.as_ptr()) }
    }
}

/// The levels of syslog.
fn log_level(level: c_int) -> RDKafkaLogLevel {
    match level {
        ..=0 => RDKafkaLogLevel::Emerg,
        1 => RDKafkaLogLevel::Alert,
        2 => RDKafkaLogLevel::Critical,
        3 => RDKafkaLogLevel::Error,
        4 => RDKafkaLogLevel::Warning,
        5 => RDKafkaLogLevel::Notice,
        6 => RDKafkaLogLevel::Info,
        7.. => RDKafkaLogLevel::Debug,
    }
}

/// A message in an event.
#[derive(Clone, Copy)]
pub(super) struct MessageRef<'e> {
    message: &'e sys::rd_kafka_message_t,
}

impl<'e> MessageRef<'e> {
    /// Tells topics apart while one of their splits is assigned.
    pub fn topic_id(&self) -> usize {
        self.message.rkt.addr()
    }

    pub fn topic(&self) -> Cow<'e, str> {
        // SAFETY: the message holds its topic, and the topic its name.
        unsafe { text(sys::rd_kafka_topic_name(self.message.rkt)) }
    }

    pub fn partition(&self) -> i32 {
        self.message.partition
    }

    pub fn offset(&self) -> u64 {
        self.message.offset.unsigned_abs() // below 0 are only errors
    }

    pub fn key(&self) -> Option<&'e [u8]> {
        // SAFETY: the client says so: so many bytes there, which live as long as the message.
        unsafe { bytes(self.message.key.cast(), self.message.key_len) }
    }

    pub fn value(&self) -> Option<&'e [u8]> {
        // SAFETY: as the key.
        unsafe { bytes(self.message.payload.cast(), self.message.len) }
    }

    /// Milliseconds since 1970, and whose.
    pub fn timestamp(&self) -> (Option<u64>, Option<TimestampType>) {
        let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message is alive, and the kind is written to before this returns.
        let time = unsafe { sys::rd_kafka_message_timestamp(self.message, &mut kind) };
        let kind = match kind {
            sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE => return (None, None),
            sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_CREATE_TIME => TimestampType::Create,
            sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME => TimestampType::Append,
        };
        let time = u64::try_from(time).ok();
        (time, time.map(|_| kind))
    }

    /// Names and values of the headers, in their order.
    pub fn headers(&self) -> impl Iterator<Item = (Cow<'e, str>, Option<&'e [u8]>)> + use<'e> {
        let mut headers = ptr::null_mut();
        // SAFETY: the message is alive; the list of headers that the client gives lives in it. The client makes that list when
        // it is first asked for, which no one else does at the same time: the event is ours alone.
        let error = unsafe { sys::rd_kafka_message_headers(self.message, &mut headers) };
        let there = error == sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR && !headers.is_null();
        (0..).map_while(move |index| {
            if !there {
                return None;
            }
            let (mut name, mut value, mut len) = (ptr::null(), ptr::null(), 0);
            // SAFETY: the list is alive, and what is returned is written to before this returns and lives in the list.
            unsafe {
                match sys::rd_kafka_header_get_all(headers, index, &mut name, &mut value, &mut len) {
                    sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => {
                        Some((text(name), bytes(value.cast(), len)))
                    }
                    _ => None,
                }
            }
        })
    }
}

/// A text of the client; bytes that are not UTF-8 are replaced.
///
/// # Safety
///
/// `from` is null, or a text that ends with a zero byte and lives as long as `'a`.
unsafe fn text<'a>(from: *const std::ffi::c_char) -> Cow<'a, str> {
    match from.is_null() {
        true => Cow::Borrowed(""),
        // SAFETY: as the caller promises.
        false => unsafe { CStr::from_ptr(from) }.to_string_lossy(),
    }
}

/// Bytes of the client; none where it points nowhere.
///
/// # Safety
///
/// `from` is null, or points to `len` bytes that live as long as `'a`.
unsafe fn bytes<'a>(from: *const u8, len: usize) -> Option<&'a [u8]> {
    match from.is_null() {
        true => None,
        // SAFETY: as the caller promises.
        false => Some(unsafe { std::slice::from_raw_parts(from, len) }),
    }
}
