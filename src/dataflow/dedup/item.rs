//! What checkpoints keep of ids: those of an epoch together, as an item that never changes.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::checkpoint::ItemId;
use crate::dataflow::durable::ItemCodec;
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::message::MessageId;
use crate::varint;

/// The id of a message, in halves: so an entry of a map takes 24 bytes and not 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Id(u64, u64);

impl Id {
    /// Bytes in a checkpoint.
    const BYTES: usize = 16;

    /// Spreads ids over workers. Every worker of a run must give the same.
    pub fn route(self) -> u64 {
        let mut bytes = [0; Id::BYTES];
        (&mut bytes[..]).put_u128_le(u128::from(self.0) << 64 | u128::from(self.1));
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

impl From<MessageId> for Id {
    fn from(id: MessageId) -> Self {
        Id((id.0 >> 64) as u64, id.0 as u64)
    }
}

/// Which item: the ids of an input that a worker remembers since an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Name {
    pub input: u32,
    pub epoch: Epoch,
    /// The worker that made the item, so that those of an epoch differ. In another run the ids may be elsewhere.
    pub maker: u32,
}

/// How things stood in an epoch, the same on every worker: what had been said, see the [module](super). Uptime is in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Moment {
    /// The smallest uptime of a worker.
    pub earliest: u64,
    /// The largest one.
    pub latest: u64,
    /// What was delivered below this epoch had been acknowledged.
    pub acked: Epoch,
}

/// An item, or only its name where it goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub name: Name,
    pub moment: Moment,
    pub ids: Vec<Id>,
}

/// The form of a [`Batch`]: numbers in LEB128, then the ids, 16 bytes each.
pub(crate) struct BatchCodec;

impl ItemCodec<Batch> for BatchCodec {
    fn id(&self, batch: &Batch) -> ItemId {
        let Name { input, epoch, maker } = batch.name;
        let name = u128::from(epoch) << 64 | u128::from(input) << 32 | u128::from(maker);
        ItemId(xxhash_rust::xxh3::xxh3_128(&name.to_le_bytes())) // spread, as stores share items out by remainders
    }

    fn encode(&self, batch: &Batch, out: &mut BytesMut) -> Bytes {
        let Batch { name: Name { input, epoch, maker }, moment: Moment { earliest, latest, acked }, ids } = batch;
        for number in [u64::from(*input), *epoch, u64::from(*maker), *earliest, *latest, *acked] {
            varint::put(number, out);
        }
        out.reserve(ids.len() * Id::BYTES);
        for Id(high, low) in ids {
            out.put_u64_le(*high);
            out.put_u64_le(*low);
        }
        Bytes::new()
    }

    fn decode(&self, bytes: Bytes) -> Result<Batch> {
        decode(bytes).ok_or_else(|| Error::new(ErrorKind::Store, "ids of messages are damaged, or of another version"))
    }
}

fn decode(mut bytes: Bytes) -> Option<Batch> {
    let mut numbers = [0; 6];
    for number in &mut numbers {
        let (value, length) = varint::get(&bytes)?;
        bytes.advance(length);
        *number = value;
    }
    let [input, epoch, maker, earliest, latest, acked] = numbers;
    let name = Name { input: input.try_into().ok()?, epoch, maker: maker.try_into().ok()? };
    let (ids, []) = bytes.as_chunks::<{ Id::BYTES }>() else { return None };
    let ids = ids.iter().map(|id| {
        let mut id = &id[..];
        Id(id.get_u64_le(), id.get_u64_le())
    });
    Some(Batch { name, moment: Moment { earliest, latest, acked }, ids: ids.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_comes_back_and_any_other_bytes_are_an_error() {
        let name = Name { input: 3, epoch: 1_700_000_000_000, maker: 300 };
        let moment = Moment { earliest: 5, latest: u64::MAX, acked: 1_699_999_999_000 };
        for ids in [vec![], vec![Id::from(MessageId(u128::MAX - 7)), Id(0, 1)]] {
            let batch = Batch { name, moment, ids };
            let mut bytes = BytesMut::new();
            BatchCodec.encode(&batch, &mut bytes);
            let bytes = bytes.freeze();
            assert_eq!(BatchCodec.decode(bytes.clone()).unwrap(), batch);
            for cut in (0..bytes.len()).filter(|cut| !(bytes.len() - cut).is_multiple_of(Id::BYTES)) {
                assert_eq!(BatchCodec.decode(bytes.slice(..cut)).unwrap_err().kind(), ErrorKind::Store);
            }
        }
        let id = |name| BatchCodec.id(&Batch { name, moment, ids: vec![] });
        for other in [Name { input: 4, ..name }, Name { epoch: 1, ..name }, Name { maker: 0, ..name }] {
            assert_ne!(id(name), id(other));
        }
    }
}
