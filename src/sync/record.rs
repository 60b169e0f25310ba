//! Records as they enter the synchronization, and what leaves it.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::key::Key;
use crate::checkpoint::ItemId;
use crate::dataflow::Arrived;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Offset, SplitId};

/// What records carry through the synchronization, unseen. It travels between processes, see [`Data`](crate::dataflow::Data).
pub trait Payload: Clone + fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Gives up buffers shared with other payloads. Called once, when the record starts to wait for other sides.
    fn detach(&mut self);

    /// The memory behind the payload, in bytes, beyond its own size. The same at every call after `detach`.
    fn bytes(&self) -> usize;

    /// Appends its form in checkpoints, which must not change from version to version of a program. What is returned comes after it;
    /// it is shared, so that it need not be copied.
    fn encode(&self, out: &mut BytesMut) -> Bytes;

    /// Reads what was written.
    ///
    /// # Errors
    ///
    /// Bytes that no [`encode`](Self::encode) has made.
    fn decode(bytes: Bytes) -> Result<Self>;
}

/// Sharing costs as much as copying so many bytes: a counter of its own, and a way back from another thread.
const WORTH_SHARING: usize = 4 << 10;

/// Bytes are mostly slices of large read buffers: one that waits is copied, so that it holds no more than itself.
impl Payload for Bytes {
    fn detach(&mut self) {
        *self = Bytes::copy_from_slice(self);
    }
    fn bytes(&self) -> usize {
        self.len()
    }
    fn encode(&self, out: &mut BytesMut) -> Bytes {
        if self.len() >= WORTH_SHARING {
            return self.clone();
        }
        out.extend_from_slice(self);
        Bytes::new()
    }
    fn decode(bytes: Bytes) -> Result<Self> {
        Ok(bytes)
    }
}

/// A payload of any type that serde knows. What it points at does not count as memory. In checkpoints it has the form of bincode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Value<T>(pub T);

impl<T: Clone + fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static> Payload for Value<T> {
    fn detach(&mut self) {}
    fn bytes(&self) -> usize {
        0
    }
    fn encode(&self, out: &mut BytesMut) -> Bytes {
        bincode::serialize_into(out.writer(), &self.0).expect("memory takes what serde knows");
        Bytes::new()
    }
    fn decode(bytes: Bytes) -> Result<Self> {
        let damaged = |error| Error::new(ErrorKind::Store, "a payload cannot be read").with_source(error);
        bincode::deserialize(&bytes).map(Value).map_err(damaged)
    }
}

/// A record of one side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record<P> {
    /// What it is matched by.
    pub key: Key,
    /// The side it belongs to: 0 for the first.
    pub side: u8,
    /// The split it was read from.
    pub split: SplitId,
    /// Its position there.
    pub offset: Offset,
    /// Its timestamp, in milliseconds since the Unix epoch: decides between the splits of a side within an epoch.
    pub timestamp: u64,
    /// The time its deadline counts from, on the job's clock, in milliseconds since the Unix epoch.
    pub base: u64,
    /// What it carries.
    pub payload: P,
}

impl<P> Record<P> {
    /// A record that has arrived, as one of a side.
    pub fn new(key: Key, side: u8, arrived: Arrived<P>) -> Self {
        let Arrived { split, offset, timestamp, base, data } = arrived;
        Record { key, side, split, offset, timestamp, base, payload: data }
    }
}

/// A record inside an output.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entry<P> {
    /// The split it was read from.
    pub split: SplitId,
    /// Its position there.
    pub offset: Offset,
    /// Its timestamp, in milliseconds since the Unix epoch.
    pub timestamp: u64,
    /// What it carries.
    pub payload: P,
    /// The item of the durable collection of keys that ends with the payload in the form of checkpoints, if it has waited.
    pub item: Option<ItemId>,
}

/// What the synchronization has to say about a key. Within an epoch a key has at most one output.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Output<P> {
    /// Every side was present for the first time.
    Joined {
        /// The key.
        key: Key,
        /// Its deadline had passed before.
        late: bool,
        /// One record of each side, in the order of the sides.
        records: Vec<Entry<P>>,
    },
    /// The deadline has passed and sides are missing.
    Delayed {
        /// The key.
        key: Key,
        /// The record of each side that is present, in the order of the sides.
        records: Vec<Option<Entry<P>>>,
    },
}

impl<P> Output<P> {
    /// The key that the output is about.
    pub fn key(&self) -> &Key {
        match self {
            Output::Joined { key, .. } | Output::Delayed { key, .. } => key,
        }
    }
}
