//! The store on a simulated disk and on a real one.

pub(super) mod histories;
mod model;
mod named;
pub(super) mod together;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::compact::Sizes;
use super::sim;
use super::*;

/// Many small segments, so that a few frames are enough to fill them.
pub(super) const SMALL: Sizes = Sizes { segment: 200, slack: 0, frame: 100, pass: 20, least: 0 };

pub(super) fn store(disk: &Arc<dyn Disk>, folder: &Path, slot: usize, sizes: Sizes) -> FolderStore {
    FolderStore::new(folder.to_owned(), Arc::clone(disk), Slot(slot)).with_sizes(sizes)
}

pub(super) fn begin(num_slots: usize) -> Begin {
    let identity = Identity { job: "job".to_owned(), settings: vec![("key".to_owned(), "id".to_owned())] };
    Begin { identity, num_slots, accept_changes: false }
}

/// The stores of a new run.
pub(super) fn start(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    num_slots: usize,
    take_over: bool,
    sizes: Sizes,
) -> Result<Vec<FolderStore>> {
    let mut stores: Vec<_> = (0..num_slots).map(|slot| store(disk, folder, slot, sizes)).collect();
    let claim = stores[0].claim(take_over)?;
    stores[0].begin(&begin(num_slots))?;
    stores[1..].iter_mut().try_for_each(|store| store.join(claim))?;
    Ok(stores)
}

/// A frame that adds an item.
pub(super) fn frame(lower: Epoch, upper: Epoch, item: &str) -> Frame {
    let id = ItemId(u128::from(xxhash_rust::xxh3::xxh3_64(item.as_bytes())));
    let updates = vec![ItemUpdate { id, diff: 1, bytes: Bytes::copy_from_slice(item.as_bytes()), rest: None }];
    Frame { lower, upper, changes: vec![Changes { collection: "items".to_owned(), updates }], ..Frame::default() }
}

/// All items of a store, sorted.
pub(super) fn items(store: &mut FolderStore) -> Vec<String> {
    let mut items = vec![];
    store
        .items(Share { index: 0, peers: 1 }, &mut |_, times, bytes| {
            (0..times).for_each(|_| items.push(String::from_utf8(bytes.to_vec()).unwrap()));
            Ok(())
        })
        .unwrap();
    items.sort();
    items
}
