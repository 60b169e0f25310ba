//! Workers on threads of their own, on a real disk: all begin new segments and thereby write manifests at the same time, while one
//! compacts.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::compact::Sizes;
use super::super::*;
use super::{SMALL, frame, items, start};

const RANGES: u64 = 150;
const WORKERS: usize = 4;

#[test]
fn workers_write_manifests_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    run(&(Arc::new(LocalDisk) as Arc<dyn Disk>), folder.path());
}

/// Runs twice with many workers, and looks at what they have left.
pub(in crate::checkpoint) fn run(disk: &Arc<dyn Disk>, folder: &Path) {
    let sizes = Sizes { segment: 150, slack: 2_000, ..SMALL };
    let mut expected = BTreeSet::new();
    for run in 0..2 {
        let stores = start(disk, folder, WORKERS, false, sizes).unwrap();
        let done: Vec<AtomicU64> = (0..WORKERS).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for (slot, mut store) in stores.into_iter().enumerate() {
                let done = &done;
                scope.spawn(move || {
                    for range in run * RANGES..(run + 1) * RANGES {
                        let published = done.iter().map(|done| done.load(Ordering::SeqCst)).min().unwrap_or(0);
                        let item = format!("{run}-{slot}-{range}");
                        store.append(&Frame { published, ..frame(range, range + 1, &item) }).unwrap();
                        done[slot].store(range + 1, Ordering::SeqCst);
                        if slot == 0 {
                            store.compact().unwrap();
                        }
                    }
                });
            }
        });
        for slot in 0..WORKERS {
            expected.extend((run * RANGES..(run + 1) * RANGES).map(|range| format!("{run}-{slot}-{range}")));
        }
        let inspection = inspect(folder.into(), Arc::clone(disk)).unwrap();
        inspection.verify().unwrap();
        assert!(inspection.segments.iter().any(|segment| segment.slot.is_none()), "there is no base");
    }
    let mut stores = start(disk, folder, 1, false, sizes).unwrap();
    assert_eq!(items(&mut stores[0]), expected.into_iter().collect::<Vec<_>>());
}
