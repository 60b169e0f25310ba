//! What a dataset looks like: its topics, and the record of a key in each of them.

use super::clickstream::Clickstream;
use super::fasten::Fasten;
use super::line::Line;
use super::options::Options;
use super::orders::Orders;
use super::telemetry::Telemetry;

/// One topic of a dataset. Paths are dotted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Topic {
    /// The name, of the topic and of its files.
    pub name: &'static str,
    /// Where the key fields are.
    pub keys: &'static [&'static str],
    /// Where the event time is.
    pub timestamp: &'static str,
    /// Where the number is that tells a record from the others of its key.
    pub version: &'static str,
}

/// An answer that is expected of a job on some of the topics.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// The folder it is in.
    pub folder: &'static str,
    /// The topics that are joined, by index.
    pub topics: &'static [usize],
}

/// One record that is to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// The topic, by index.
    pub topic: usize,
    /// The number of the key; different keys have different numbers.
    pub key: u64,
    /// A number that looks random and belongs to the key.
    pub hash: u64,
    /// When the key began, in milliseconds since the Unix epoch: the same for all its records.
    pub base: u64,
    /// Event time, in milliseconds since the Unix epoch.
    pub time: u64,
    /// The number of the record: unique in the dataset, and it grows in the order of arrival.
    pub version: u64,
}

/// The shape of a dataset.
pub(super) trait Shape: Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;
    /// What it is, on one line.
    fn about(&self) -> &'static str;
    /// Its topics.
    fn topics(&self) -> &'static [Topic];
    /// The answers that are kept with it.
    fn answers(&self) -> &'static [Answer];
    /// Bytes of the payload part of a record unless told otherwise.
    fn payload(&self) -> usize;
    /// Whether two keys can have the same printed form.
    fn has_ambiguous_keys(&self) -> bool;
    /// Prepares whatever makes writing fast.
    fn writer(&self, options: &Options) -> Box<dyn Writer>;
}

/// Writes the records of one dataset.
pub(super) trait Writer {
    /// Writes the members of a record. Key fields are written with `Line::key_...`, as many as the topic has.
    fn write(&mut self, record: &Record, line: &mut Line<'_>);
}

/// Every shape, in the order of the list.
pub(super) const ALL: [&dyn Shape; 4] = [&Fasten, &Orders, &Clickstream, &Telemetry];

/// The shape with this name.
pub(super) fn find(name: &str) -> Option<&'static dyn Shape> {
    ALL.into_iter().find(|shape| shape.name() == name)
}

/// The names of all shapes.
pub(super) fn names() -> Vec<&'static str> {
    ALL.iter().map(|shape| shape.name()).collect()
}
