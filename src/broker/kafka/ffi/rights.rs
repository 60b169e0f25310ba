//! Asks what the user of a client may do with topics, so that a missing right is known before anything is written.

use std::ffi::{CStr, CString, c_char};
use std::slice;
use std::time::Duration;

use rdkafka::bindings::{
    rd_kafka_AclOperation_t, rd_kafka_AdminOptions_destroy, rd_kafka_AdminOptions_new,
    rd_kafka_AdminOptions_set_include_authorized_operations, rd_kafka_AdminOptions_set_request_timeout,
    rd_kafka_DescribeTopics, rd_kafka_DescribeTopics_result_topics, rd_kafka_TopicCollection_destroy,
    rd_kafka_TopicCollection_of_topic_names, rd_kafka_TopicDescription_authorized_operations,
    rd_kafka_TopicDescription_name, rd_kafka_admin_op_t, rd_kafka_error_destroy, rd_kafka_event_DescribeTopics_result,
    rd_kafka_event_destroy, rd_kafka_event_t, rd_kafka_queue_destroy, rd_kafka_queue_new, rd_kafka_queue_poll,
};
use rdkafka::client::{Client, ClientContext};

/// How much longer than the request itself its answer may take inside of the client.
const SLACK: Duration = Duration::from_secs(1);

/// Topics, and whether they may be written, as far as the broker says: topics that it says nothing about are left out.
pub(in super::super) fn may_write<C: ClientContext>(
    client: &Client<C>,
    topics: &[String],
    patience: Duration,
) -> Vec<(String, bool)> {
    let names: Vec<CString> = topics.iter().filter_map(|topic| CString::new(topic.as_str()).ok()).collect();
    let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let millis = |time: Duration| i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
    let operation = rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
    // SAFETY: the client outlives the block, `names` and `pointers` too, and their number is right. Topics, options and queue
    // are made here, are not null (librdkafka ends the process if memory runs out), and are given back once, the queue after
    // its event. The request copies what it needs of topics and options.
    unsafe {
        let list = rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        let options = rd_kafka_AdminOptions_new(client.native_ptr(), operation);
        let error = rd_kafka_AdminOptions_set_include_authorized_operations(options, 1);
        if !error.is_null() {
            rd_kafka_error_destroy(error);
        }
        rd_kafka_AdminOptions_set_request_timeout(options, millis(patience), std::ptr::null_mut(), 0);
        let queue = rd_kafka_queue_new(client.native_ptr());
        rd_kafka_DescribeTopics(client.native_ptr(), list, options, queue);
        let event = rd_kafka_queue_poll(queue, millis(patience + SLACK));
        let answer = if event.is_null() { Vec::new() } else { writable(event) };
        if !event.is_null() {
            rd_kafka_event_destroy(event);
        }
        rd_kafka_queue_destroy(queue);
        rd_kafka_AdminOptions_destroy(options);
        rd_kafka_TopicCollection_destroy(list);
        answer
    }
}

/// Takes the answer out of an event.
///
/// # Safety
///
/// The event is not null and lives.
unsafe fn writable(event: *mut rd_kafka_event_t) -> Vec<(String, bool)> {
    // SAFETY: the event lives, as the caller promises, and all that is read belongs to it; arrays have the length that is
    // given with them, and a null pointer stands for "not known".
    unsafe {
        let result = rd_kafka_event_DescribeTopics_result(event);
        if result.is_null() {
            return Vec::new();
        }
        let mut count = 0;
        let topics = rd_kafka_DescribeTopics_result_topics(result, &mut count);
        if topics.is_null() {
            return Vec::new();
        }
        let mut answer = Vec::with_capacity(count);
        for topic in slice::from_raw_parts(topics, count) {
            let mut count = 0;
            let operations = rd_kafka_TopicDescription_authorized_operations(*topic, &mut count);
            if operations.is_null() {
                continue;
            }
            let write = rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_WRITE;
            let name = CStr::from_ptr(rd_kafka_TopicDescription_name(*topic)).to_string_lossy().into_owned();
            answer.push((name, slice::from_raw_parts(operations, count).contains(&write)));
        }
        answer
    }
}
