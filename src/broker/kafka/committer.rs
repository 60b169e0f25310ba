//! Commits offsets under the name of a group, without being a member of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};

use super::client::KafkaConsumer;
use super::error::classify;
use super::topics::Names;
use crate::broker::BrokerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Offset, Offsets, Reason, SplitId};
use crate::source::Committer;

/// How the metadata of our commits begins, so that people and later runs see who made them.
const OURS: &str = "syncline ";
/// In it, if the job kept what waits in a checkpoint: then the offsets alone are not enough to go on.
const KEPT: &str = "state=kept ";

/// The metadata of a job's commits.
pub(super) fn metadata(options: &BrokerOptions) -> String {
    let state = if options.keeps_state { KEPT } else { "state=none " };
    format!("{OURS}{state}job={}", options.group)
}

/// The job that committed with this metadata, if it kept its state in a checkpoint.
pub(super) fn job_with_state(metadata: &str) -> Option<&str> {
    metadata.strip_prefix(OURS)?.strip_prefix(KEPT)?.strip_prefix("job=")
}

/// Shares the reader's client.
pub(super) struct KafkaCommitter {
    client: Arc<KafkaConsumer>,
    names: Names,
    group: Option<String>,
    metadata: String,
}

impl KafkaCommitter {
    /// A committer for a group; without one every commit succeeds and does nothing.
    pub(super) fn new(client: Arc<KafkaConsumer>, names: Names, group: Option<String>, metadata: String) -> Self {
        KafkaCommitter { client, names, group, metadata }
    }
}

impl Committer for KafkaCommitter {
    fn commit(&mut self, offsets: &Offsets, _rejected: &[(SplitId, Offset, Reason)]) -> Result<()> {
        let Some(group) = &self.group else { return Ok(()) };
        let mut list = TopicPartitionList::new();
        for (split, offset) in offsets {
            let beyond = |_| Error::new(ErrorKind::Read, format!("offset {offset} is no offset of Kafka"));
            let position = KafkaOffset::Offset(i64::try_from(offset.0).map_err(beyond)?);
            let (topic, partition) = self.names.of(*split)?;
            let mut element = list.add_partition(&topic, partition);
            element.set_metadata(&self.metadata);
            let refused = |error| classify(error, ErrorKind::Read, format!("offset {offset} is no offset of Kafka"));
            element.set_offset(position).map_err(refused)?;
        }
        if list.count() == 0 {
            return Ok(());
        }
        self.client.commit(&list, CommitMode::Sync).map_err(|error| {
            let elements = list.elements();
            let topics: BTreeSet<&str> = elements.iter().map(|element| element.topic()).collect();
            let context = format!("cannot commit offsets of topics {topics:?} for group {group:?}");
            self.client.context().explain(error, ErrorKind::Read, context)
        })
    }
}
