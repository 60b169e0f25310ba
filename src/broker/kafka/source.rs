//! The source of topics: its partitions, and positions made numbers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::Offset as KafkaOffset;
use rdkafka::TopicPartitionList;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;

use super::client::{KafkaConsumer, PATIENCE, ask_offsets, ask_partitions, ask_topics, listen, new_consumer};
use super::committer::{KafkaCommitter, job_with_state, metadata};
use super::error::classify;
use super::reader::KafkaReader;
use super::topics::{Named, Names, Topics};
use crate::broker::BrokerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Offset, Offsets, Split, SplitId};
use crate::source::{Assignment, Committer, OnLost, Otherwise, Position, Reader, Replay, Source};

/// How often topics and partitions that were added are looked for, if nothing else is said. More often costs a metadata
/// request, less often delays them.
const DISCOVERY: Duration = Duration::from_secs(5 * 60);

/// Its own client asks about partitions and offsets; every reader gets a new one.
pub(super) struct KafkaSource {
    name: String,
    topics: Topics,
    group: String,
    config: ClientConfig,
    client: Option<KafkaConsumer>,
    discovery: Option<Duration>,
    on_lost: OnLost,
    /// What is written beside commits.
    metadata: String,
    despite_state: bool,
    names: Names,
    /// Every split that was ever found. One that the broker does not name any more stays: its reader finds out whether it is
    /// really gone, where a split that is removed would be forgotten with what was not read of it.
    known: BTreeMap<SplitId, Split>,
}

impl KafkaSource {
    pub fn new(name: String, topics: Topics, config: ClientConfig, options: &BrokerOptions) -> Self {
        KafkaSource {
            name,
            topics,
            group: options.group.clone(),
            config,
            client: None,
            discovery: options.discovery.every(DISCOVERY),
            on_lost: options.on_lost_offset,
            metadata: metadata(options),
            despite_state: options.despite_state,
            names: Names::default(),
            known: BTreeMap::new(),
        }
    }

    /// Asks the broker something, and says in the error what, and of which topic.
    fn ask<T>(
        &mut self,
        what: &str,
        topic: Option<&str>,
        question: impl FnOnce(&KafkaConsumer) -> Result<T, KafkaError>,
    ) -> Result<T> {
        let client = match self.client.take() {
            Some(client) => client,
            None => new_consumer(&self.config)?,
        };
        let client = self.client.insert(client);
        client.context().forget();
        question(client).map_err(|error| {
            // What the client has to say about its connection comes through its queue.
            listen(client);
            let unknown = classify(error.clone(), ErrorKind::Read, "").kind() == ErrorKind::NotFound;
            match topic.filter(|_| unknown) {
                Some(topic) => missing(&self.name, topic).with_source(error),
                None => client.context().explain_first(
                    error,
                    ErrorKind::Read,
                    format!("cannot ask {} for {what}", self.name),
                ),
            }
        })
    }

    /// Adds what was found of a topic to what is known.
    fn found(&mut self, topic: &str, partitions: Vec<u32>) -> Result<()> {
        for partition in partitions.into_iter().filter(|partition| self.topics.reads(topic, *partition)) {
            let split = self.topics.split(topic, partition);
            self.names.learn(&split)?;
            self.known.entry(split.id).or_insert(split);
        }
        Ok(())
    }

    fn find_named(&mut self, named: &Named) -> Result<()> {
        let seen = self.known.keys().any(|split| split.first() == SplitId::numbered(&named.name, 0));
        let answer = self.ask("partitions", Some(&named.name), |client| ask_partitions(client, &named.name, PATIENCE));
        let partitions = match answer {
            // Its reader finds out what that means; other topics are to be looked at in any case.
            Err(error) if seen => {
                tracing::warn!(source = self.name, topic = named.name, error = %error.report(), "partitions stay as they were");
                return Ok(());
            }
            answer => answer?,
        };
        let absent: Vec<u32> =
            named.partitions.iter().flatten().copied().filter(|wanted| !partitions.contains(wanted)).collect();
        if !seen && !absent.is_empty() {
            let text = format!(
                "topic {:?} of {} has no partitions {absent:?}: it has {} of them, from 0",
                named.name,
                self.name,
                partitions.len()
            );
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        self.found(&named.name, partitions)
    }

    /// The offsets at a symbolic position or at a time in milliseconds since 1970.
    fn symbolic(&mut self, at: KafkaOffset, splits: &[Split]) -> Result<Offsets> {
        let places = splits.iter().map(|split| self.names.learn(split)).collect::<Result<Vec<_>>>()?;
        let places = || places.iter().map(|(topic, partition)| (&**topic, *partition));
        let answers = self.ask("offsets", None, |client| ask_offsets(client, places(), at, PATIENCE))?;
        let (mut offsets, mut late) = (Offsets::new(), Vec::new());
        for (split, answer) in splits.iter().zip(answers) {
            match answer.map_err(|error| self.no_offset(split, error))? {
                Some(offset) => {
                    offsets.insert(split.id, Offset(offset));
                }
                None => late.push(split.clone()), // later than every message: that is the end
            }
        }
        match late.first() {
            None => Ok(offsets),
            Some(split) if at == KafkaOffset::End => {
                Err(Error::new(ErrorKind::NotFound, format!("{} has no end of {}", self.name, split.name)))
            }
            Some(_) => {
                offsets.extend(self.symbolic(KafkaOffset::End, &late)?);
                Ok(offsets)
            }
        }
    }

    fn no_offset(&self, split: &Split, error: KafkaError) -> Error {
        classify(error, ErrorKind::Read, format!("{} names no offset of {}", self.name, split.name))
    }

    /// What waited for its partner lies below the committed offsets, and in a checkpoint that nobody has given.
    fn lost_state(&self, job: &str, split: &Split) -> Error {
        let text = format!(
            "offsets of {} were committed for group {:?} by job {job:?}, which kept what waits in a checkpoint, and there is no \
             checkpoint here: it would be lost in silence; give --backendFolder as that job had it, or say --start, such as \
             --start committed, to begin without it",
            split.name, self.group
        );
        Error::new(ErrorKind::Store, text)
    }

    fn committed(&mut self, otherwise: Otherwise, splits: &[Split]) -> Result<Offsets> {
        let otherwise = match otherwise {
            Otherwise::Earliest => KafkaOffset::Beginning,
            Otherwise::Latest => KafkaOffset::End,
        };
        if self.group.is_empty() || splits.is_empty() {
            return self.symbolic(otherwise, splits);
        }
        let places = splits.iter().map(|split| self.names.learn(split)).collect::<Result<Vec<_>>>()?;
        let answer = self.ask("committed offsets", None, |client| {
            let mut list = TopicPartitionList::new();
            for (topic, partition) in &places {
                list.add_partition(topic, *partition);
            }
            client.committed_offsets(list, PATIENCE)
        })?;
        let (mut offsets, mut rest) = (Offsets::new(), Vec::new());
        for (split, (topic, partition)) in splits.iter().zip(&places) {
            let element = answer.find_partition(topic, *partition);
            if let Some(job) = element.as_ref().and_then(|element| job_with_state(element.metadata()))
                && !self.despite_state
            {
                return Err(self.lost_state(job, split));
            }
            match element.map(|element| element.error().map(|()| element.offset())).transpose() {
                Ok(Some(KafkaOffset::Offset(offset))) => {
                    let offset = u64::try_from(offset).unwrap_or_default(); // below 0 are only symbols
                    offsets.insert(split.id, Offset(offset));
                }
                Ok(_) => rest.push(split.clone()),
                Err(error) => return Err(self.no_offset(split, error)),
            }
        }
        offsets.extend(self.symbolic(otherwise, &rest)?);
        Ok(offsets)
    }
}

/// The error for a topic that is not there.
pub(super) fn missing(name: &str, topic: &str) -> Error {
    let text = format!(
        "{name} has no topic {topic:?}, or it may not be seen; to make it: \
         kafka-topics.sh --bootstrap-server HOST:PORT --create --topic {topic} --partitions N"
    );
    Error::new(ErrorKind::NotFound, text)
}

impl Source for KafkaSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn splits(&mut self) -> Result<Vec<Split>> {
        let topics = self.topics.clone();
        match &topics {
            Topics::Named(named) => named.iter().try_for_each(|named| self.find_named(named))?,
            Topics::Pattern(_) => {
                let chosen = |topic: &str| topics.reads(topic, 0);
                let found = self.ask("topics", None, |client| ask_topics(client, chosen, PATIENCE))?;
                found.into_iter().try_for_each(|(topic, partitions)| self.found(&topic, partitions))?;
            }
        }
        let mut splits: Vec<Split> = self.known.values().cloned().collect();
        splits.sort_by(|one, two| (one.ordinal, &one.name).cmp(&(two.ordinal, &two.name)));
        Ok(splits)
    }

    fn discovery(&self) -> Option<Duration> {
        self.discovery
    }

    fn resolve(&mut self, position: &Position, splits: &[Split]) -> Result<Offsets> {
        match position {
            Position::Earliest => self.symbolic(KafkaOffset::Beginning, splits),
            Position::Latest => self.symbolic(KafkaOffset::End, splits),
            Position::Committed { otherwise } => self.committed(*otherwise, splits),
            Position::Timestamp(time) => {
                let time = i64::try_from(*time).map_err(|_| {
                    Error::new(ErrorKind::Config, format!("{time} ms is too late to be the time of a message"))
                })?;
                self.symbolic(KafkaOffset::Offset(time), splits)
            }
            Position::Exact(exact) => {
                let (named, rest): (Vec<Split>, Vec<Split>) =
                    splits.iter().cloned().partition(|split| exact.contains_key(&split.name));
                let mut offsets = self.symbolic(KafkaOffset::Beginning, &rest)?;
                offsets.extend(named.iter().map(|split| (split.id, exact[&split.name])));
                Ok(offsets)
            }
        }
    }

    fn open(&mut self, assignments: &[Assignment]) -> Result<(Box<dyn Reader>, Box<dyn Committer>)> {
        let client = Arc::new(new_consumer(&self.config)?);
        let group = (!self.group.is_empty()).then(|| self.group.clone());
        let committer = KafkaCommitter::new(client.clone(), self.names.clone(), group, self.metadata.clone());
        let mut reader = KafkaReader::new(client, self.name.clone(), self.names.clone(), self.on_lost)?;
        reader.assign(assignments, &[])?;
        Ok((Box::new(reader), Box::new(committer)))
    }

    fn replay(&self) -> Replay {
        Replay::Seek
    }

    fn backlog(&mut self, from: &Offsets) -> Result<Option<u64>> {
        let places = from.keys().map(|split| self.names.of(*split)).collect::<Result<Vec<_>>>()?;
        let places = || places.iter().map(|(topic, partition)| (&**topic, *partition));
        let ends = self.ask("end offsets", None, |client| {
            let ends = ask_offsets(client, places(), KafkaOffset::End, PATIENCE)?;
            ends.into_iter().collect::<Result<Vec<_>, _>>()
        })?;
        let left = |(end, from): (Option<u64>, &Offset)| end.unwrap_or_default().saturating_sub(from.0);
        Ok(Some(ends.into_iter().zip(from.values()).map(left).sum()))
    }
}
