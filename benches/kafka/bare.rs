//! The floor: a loop on the client's batch calls that consumes both topics and produces as many bytes, two messages in one. No
//! record is looked into.

#![allow(unsafe_code)] // the client's batch calls have no safe form

use std::ffi::{CString, c_char, c_void};
use std::ptr;

use rdkafka::bindings as rd;
use rdkafka::config::{ClientConfig, FromClientConfig as _};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};

use crate::kafka_broker::PATIENCE;

/// Messages per call.
const BATCH: usize = 10_000;
const WAIT_MS: i32 = 20;

pub(crate) fn run(hosts: &str, topics: [&str; 2], output: &str, partitions: i32) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", hosts);
    let mut reads = config.clone();
    for (name, value) in [
        ("group.id", "bare"),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("isolation.level", "read_committed"),
        ("fetch.queue.backoff.ms", "1"),
        ("queued.min.messages", "100000"),
        ("queued.max.messages.kbytes", "131072"),
    ] {
        reads.set(name, value);
    }
    let consumer: BaseConsumer = reads.create().expect("a client");
    let mut writes = config;
    writes.set("acks", "all").set("linger.ms", "20").set("batch.size", "1000000");
    writes.set("queue.buffering.max.kbytes", "1000000").set("queue.buffering.max.messages", "1000000");
    let producer = BaseProducer::from_config(&writes).expect("a client");
    let (mut list, mut left) = (TopicPartitionList::new(), 0);
    for topic in topics {
        for partition in 0..partitions {
            list.add_partition_offset(topic, partition, Offset::Beginning).expect("an offset");
            let (low, high) = consumer.fetch_watermarks(topic, partition, PATIENCE).expect("the broker answers");
            left += high - low;
        }
    }
    consumer.assign(&list).expect("partitions can be assigned");

    let name = CString::new(output).expect("a name");
    // SAFETY: the producer lives to the end of the function, and the topic is destroyed before it.
    let topic = unsafe {
        rd::rd_kafka_topic_new(producer.client().native_ptr(), name.as_ptr() as *const c_char, ptr::null_mut())
    };
    // SAFETY: the consumer lives to the end of the function, and the queue is destroyed before it.
    let queue = unsafe { rd::rd_kafka_queue_get_consumer(consumer.client().native_ptr()) };
    let mut messages = vec![ptr::null_mut::<rd::rd_kafka_message_t>(); BATCH];
    let mut odd: Option<*mut rd::rd_kafka_message_t> = None;
    let mut next = 0;
    while left > 0 {
        // SAFETY: the queue is live, and the array has room for as many pointers as are asked for.
        let got = unsafe { rd::rd_kafka_consume_batch_queue(queue, WAIT_MS, messages.as_mut_ptr(), messages.len()) };
        for &message in &messages[..got.max(0) as usize] {
            // SAFETY: the client has put a message there, which is ours until it is destroyed.
            if unsafe { (*message).err } != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
                // SAFETY: it is destroyed once and not used again.
                unsafe { rd::rd_kafka_message_destroy(message) };
                continue;
            }
            left -= 1;
            let Some(first) = odd.take() else {
                odd = Some(message);
                continue;
            };
            next = (next + 1) % partitions;
            // SAFETY: both messages are live, with payloads of their lengths; the buffer has room for both; the client takes the
            // buffer and frees it if it takes the record, which the loop tries until it does; both messages are destroyed once.
            unsafe {
                let size = (*first).len + (*message).len;
                let buffer = libc::malloc(size).cast::<u8>();
                ptr::copy_nonoverlapping((*first).payload.cast::<u8>(), buffer, (*first).len);
                ptr::copy_nonoverlapping((*message).payload.cast::<u8>(), buffer.add((*first).len), (*message).len);
                rd::rd_kafka_message_destroy(first);
                rd::rd_kafka_message_destroy(message);
                let free = rd::RD_KAFKA_MSG_F_FREE;
                while rd::rd_kafka_produce(
                    topic,
                    next,
                    free,
                    buffer.cast::<c_void>(),
                    size,
                    ptr::null(),
                    0,
                    ptr::null_mut(),
                ) != 0
                {
                    rd::rd_kafka_poll(producer.client().native_ptr(), 5);
                }
            }
        }
        // SAFETY: the producer is live.
        unsafe { rd::rd_kafka_poll(producer.client().native_ptr(), 0) };
    }
    producer.flush(PATIENCE).expect("the broker takes everything");
    // SAFETY: each is destroyed once and not used again.
    unsafe {
        odd.into_iter().for_each(|message| rd::rd_kafka_message_destroy(message));
        rd::rd_kafka_topic_destroy(topic);
        rd::rd_kafka_queue_destroy(queue);
    }
}
