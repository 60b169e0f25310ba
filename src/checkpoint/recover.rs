//! What the last run has left: where its logs are cut, and what the state is there.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use bytes::Bytes;

use super::log::{self, Scan};
use super::manifest::{End, Manifest, Segment};
use super::place::Place;
use super::{ItemId, ItemUpdate, Pending, Restored, SplitMark};
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::message::SplitId;
use crate::sink::Slot;

/// The end of a log that a crash tore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Torn {
    pub path: PathBuf,
    /// In bytes.
    pub position: u64,
    pub why: &'static str,
}

/// What counts of what is there.
#[derive(Debug)]
pub(super) struct Cut {
    /// The state is whole up to this epoch.
    pub upper: Epoch,
    /// Not below any epoch that was found.
    pub above: Epoch,
    /// All with their ends.
    pub segments: Vec<Segment>,
    /// Those that were being written, in which something counts: as long as they are not synced it may be in memory alone.
    pub unsynced: Vec<Segment>,
    pub torn: Vec<Torn>,
}

/// Decides where the logs of the run of a manifest are cut: at the smallest last `upper` of them.
///
/// # Errors
///
/// [`ErrorKind::Store`] if a segment is missing or damaged.
pub(super) fn cut(place: &Place, manifest: &Manifest) -> Result<Cut> {
    let job = log::hash_of_job(&manifest.identity.job);
    let (open, mut segments): (Vec<_>, Vec<_>) = manifest.segments.iter().cloned().partition(|s| s.end.is_none());
    let (mut above, mut torn, mut scans) = (manifest.above, vec![], vec![]);
    for segment in open {
        let scan = log::scan(place, &segment, job)?;
        let path = || place.segments().join(segment.name());
        torn.extend(scan.torn.map(|(position, why)| Torn { path: path(), position, why }));
        scans.push((segment, scan));
    }
    let mut last = BTreeMap::from_iter((0..manifest.num_slots).map(|slot| (Slot(slot), manifest.upper)));
    let closed = segments.iter().filter_map(|segment| Some((segment, segment.end?.upper)));
    let scanned = scans.iter().flat_map(|(segment, scan)| scan.ends.iter().map(move |(_, upper)| (segment, *upper)));
    for (segment, upper) in closed.chain(scanned) {
        above = above.max(upper);
        if let Some(slot) = segment.slot
            && segment.run == manifest.run
            && let Some(last) = last.get_mut(&slot)
        {
            *last = upper.max(*last);
        }
    }
    let upper = last.values().copied().min().unwrap_or(manifest.upper);
    // A closed segment may go beyond the cut too: its worker went on while another one had not yet written.
    let beyond: Vec<Segment> = segments.extract_if(.., |s| s.end.is_some_and(|end| end.upper > upper)).collect();
    for segment in beyond {
        let scan = log::scan(place, &segment, job)?;
        scans.push((segment, scan));
    }
    let mut unsynced = vec![];
    for (segment, scan) in scans {
        let Some(end) = end_at(place, &segment, &scan, upper, manifest)? else { continue };
        if segment.end.is_none() {
            unsynced.push(segment.clone());
        }
        segments.push(Segment { end: Some(end), ..segment });
    }
    Ok(Cut { upper, above, segments, unsynced, torn })
}

/// The end of the last frame of a segment that is not beyond the cut.
fn end_at(place: &Place, segment: &Segment, scan: &Scan, upper: Epoch, manifest: &Manifest) -> Result<Option<End>> {
    let mut end = None;
    for (bytes, frame) in &scan.ends {
        if *frame > upper {
            break;
        }
        end = Some(End { bytes: *bytes, upper: *frame });
    }
    let later = scan.ends.iter().any(|(_, frame)| *frame > upper);
    // Where it goes on beyond the cut, a range ends there on every worker.
    if later && end.is_some_and(|end| end.upper != upper && upper != manifest.upper) {
        let text = format!(
            "{:?} has no range that ends at {upper}, where the log of another worker ends: they are not of one run",
            place.segments().join(segment.name())
        );
        return Err(Error::new(ErrorKind::Store, text));
    }
    Ok(end)
}

/// Reads everything but the items of state.
pub(super) fn load(place: &Place, cut: &Cut, job: u64) -> Result<Restored> {
    let mut restored = Restored { upper: cut.upper, above: cut.above.max(cut.upper), ..Restored::default() };
    let mut marks: BTreeMap<(u32, SplitId), (Epoch, SplitMark)> = BTreeMap::new();
    log::for_each(place, &cut.segments, job, &mut |view| {
        restored.any = true;
        restored.clock = restored.clock.max(view.clock);
        restored.published = restored.published.max(view.published);
        for mark in &view.splits {
            let known = marks.entry((mark.source, mark.split)).or_insert((view.upper, *mark));
            if known.0 <= view.upper {
                *known = (view.upper, *mark);
            }
        }
        if view.upper > restored.published && view.prepared.iter().any(|prepared| !prepared.is_empty()) {
            let prepared = view.prepared.iter().map(|bytes| Bytes::copy_from_slice(bytes)).collect();
            restored.outbox.push(Pending { slot: view.slot, lower: view.lower, upper: view.upper, prepared });
        }
        Ok(())
    })?;
    restored.splits = marks.into_values().map(|(_, mark)| mark).collect();
    restored.outbox.retain(|pending| pending.upper > restored.published);
    restored.outbox.sort_by_key(|pending| (pending.slot, pending.lower, pending.upper));
    Ok(restored)
}

/// Calls `item` for each item that `wanted` names, as often as it is there.
pub(super) fn items(
    place: &Place,
    segments: &[Segment],
    job: u64,
    wanted: &mut dyn FnMut(ItemId) -> bool,
    item: &mut dyn FnMut(&str, i64, Bytes) -> Result<()>,
) -> Result<()> {
    let mut items = Items::sum(place, segments, job, &mut |id| Ok(wanted(id)))?;
    items.refuse_negative()?;
    items.give(place, segments, job, &mut |name, update| {
        // A slice would hold all that was read with it, for as long as the item waits.
        let bytes = Bytes::copy_from_slice(&update.bytes);
        item(name, update.diff, bytes)
    })
}

/// How many times items are there: first the sums of all changes, then the bytes of those that are there.
pub(super) struct Items {
    names: Vec<String>,
    indexes: HashMap<String, u32>,
    nets: HashMap<(u32, ItemId), i64>,
}

impl Items {
    /// Sums the changes of the items that `wanted` names. Takes memory for those that are there, not for their bytes.
    pub fn sum(
        place: &Place,
        segments: &[Segment],
        job: u64,
        wanted: &mut dyn FnMut(ItemId) -> Result<bool>,
    ) -> Result<Self> {
        let mut items = Items { names: vec![], indexes: HashMap::new(), nets: HashMap::new() };
        log::for_each(place, segments, job, &mut |view| {
            view.updates(&mut |name, update| {
                if wanted(update.id)? {
                    let index = items.index(name);
                    let net = items.nets.entry((index, update.id)).or_default();
                    *net = net.checked_add(update.diff).ok_or_else(|| {
                        Error::new(ErrorKind::Store, format!("the counts of collection {name:?} overflow"))
                    })?;
                    if *net == 0 {
                        items.nets.remove(&(index, update.id));
                    }
                }
                Ok(())
            })
        })?;
        Ok(items)
    }

    fn index(&mut self, name: &str) -> u32 {
        if let Some(index) = self.indexes.get(name) {
            return *index;
        }
        let index = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.indexes.insert(name.to_owned(), index);
        index
    }

    /// Refuses items that are there less than not at all.
    pub fn refuse_negative(&self) -> Result<()> {
        let Some(((index, id), net)) = self.nets.iter().find(|(_, net)| **net < 0) else { return Ok(()) };
        let text = format!(
            "collection {:?} has an item, {:032x}, {net} times: more were taken away than were there, a fault of the job",
            self.names[*index as usize], id.0
        );
        Err(Error::new(ErrorKind::Store, text))
    }

    /// Reads the same segments again and gives each item that is there with its bytes, once, its count in `diff`. What is left is
    /// there less than not at all.
    pub fn give(
        &mut self,
        place: &Place,
        segments: &[Segment],
        job: u64,
        item: &mut dyn FnMut(&str, ItemUpdate) -> Result<()>,
    ) -> Result<()> {
        log::for_each(place, segments, job, &mut |view| {
            view.updates(&mut |name, update| {
                let Some(index) = self.indexes.get(name) else { return Ok(()) };
                let key = (*index, update.id);
                match self.nets.get(&key) {
                    Some(net) if update.diff > 0 && *net > 0 => {
                        let diff = *net;
                        self.nets.remove(&key);
                        item(name, ItemUpdate { diff, ..update })
                    }
                    _ => Ok(()),
                }
            })
        })
    }

    /// What is there less than not at all.
    pub fn into_negative(self) -> impl Iterator<Item = (String, ItemUpdate)> {
        let Items { names, nets, .. } = self;
        nets.into_iter().map(move |((index, id), diff)| {
            (names[index as usize].clone(), ItemUpdate { id, diff, bytes: Bytes::new() })
        })
    }
}
