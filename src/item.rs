//! Names of the items of durable collections, for those who refer to what a checkpoint holds.

use serde::{Deserialize, Serialize};

/// Identifies an item within its collection: two items with the same id have the same bytes. Mostly a hash of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ItemId(pub u128);

/// Identifies a collection: a hash of its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CollectionId(pub u64);

impl CollectionId {
    /// The collection of this name.
    pub fn of(name: &str) -> Self {
        CollectionId(xxhash_rust::xxh3::xxh3_64(name.as_bytes()))
    }
}

/// Identifies an item of any collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ItemRef {
    /// Its collection.
    pub collection: CollectionId,
    /// Which of its items.
    pub id: ItemId,
}
