//! What the last run has left: where its logs are cut, and what the state is there.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::log::{self, Scan};
use super::manifest::{End, Manifest, Segment};
use super::place::Place;
use super::view::{Section, Update, View};
use super::{ItemId, ItemUpdate, Restored, SplitMark, outbox};
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

/// What the frames say, but for the items of state.
pub(super) struct Loaded {
    /// Its outbox is still to be resolved.
    pub restored: Restored,
    /// The splits, and the ends of the ranges that their marks are of.
    pub marks: BTreeMap<(u32, SplitId), (Epoch, SplitMark)>,
    /// The frames with what is not known to be published, in the order of the segments.
    pub unpublished: Vec<View>,
}

/// Reads the indexes of all frames, and shows each to `look`.
pub(super) fn load(place: &Place, cut: &Cut, job: u64, look: &mut dyn FnMut(&View) -> Result<()>) -> Result<Loaded> {
    let restored = Restored { upper: cut.upper, above: cut.above.max(cut.upper), ..Restored::default() };
    let mut loaded = Loaded { restored, marks: BTreeMap::new(), unpublished: vec![] };
    let Loaded { restored, marks, unpublished } = &mut loaded;
    log::for_each(place, &cut.segments, job, &mut |view| {
        look(&view)?;
        restored.any = true;
        restored.clock = restored.clock.max(view.clock);
        restored.published = restored.published.max(view.published);
        for mark in &view.splits {
            let known = marks.entry((mark.source, mark.split)).or_insert((view.upper, *mark));
            if known.0 <= view.upper {
                *known = (view.upper, *mark);
            }
        }
        unpublished.push(view);
        unpublished.retain(|view| view.upper > restored.published);
        Ok(())
    })?;
    restored.splits = marks.values().map(|(_, mark)| *mark).collect();
    Ok(loaded)
}

/// Reads everything but the items of state.
pub(super) fn restored(place: &Place, cut: &Cut, job: u64) -> Result<Restored> {
    let Loaded { restored, unpublished, .. } = load(place, cut, job, &mut |_| Ok(()))?;
    let mut outbox = outbox::resolve(place, &cut.segments, job, &unpublished)?;
    outbox.sort_by_key(|pending| (pending.slot, pending.lower, pending.upper));
    Ok(Restored { outbox, ..restored })
}

/// Calls `item` for each item that `wanted` names and that is there, with the number of times; more than once for one that was added
/// more than once.
pub(super) fn items(
    place: &Place,
    segments: &[Segment],
    job: u64,
    wanted: &mut dyn FnMut(ItemId) -> bool,
    item: &mut dyn FnMut(&str, i64, Bytes) -> Result<()>,
) -> Result<()> {
    let mut wanted = |id| Ok(wanted(id));
    let removals = Removals::of(place, segments, job, &mut wanted)?;
    let removals = removals.apply(place, segments, job, &mut wanted, &mut |name, update| {
        // A slice would hold all that was read with it, for as long as the item waits.
        item(name, update.diff, Bytes::copy_from_slice(&update.bytes))
    })?;
    removals.refuse()
}

/// Refuses items that are there less than not at all.
pub(super) fn check_balance(place: &Place, segments: &[Segment], job: u64) -> Result<()> {
    let mut removals = Removals::of(place, segments, job, &mut |_| Ok(true))?;
    log::for_each(place, segments, job, &mut |view| {
        let mut sections = view.sections.iter();
        sections.try_for_each(|section| removals.left_of(&view, section, &mut |_| Ok(true), &mut |_| {}))
    })?;
    removals.refuse()
}

/// What was taken away from collections. Few items need to be looked up in it, and few are there, where most are added and stay.
#[derive(Default)]
pub(super) struct Removals {
    collections: Vec<(Arc<str>, HashMap<ItemId, i64, foldhash::fast::RandomState>)>,
}

impl Removals {
    /// Those of the items that `wanted` names.
    pub fn of(
        place: &Place,
        segments: &[Segment],
        job: u64,
        wanted: &mut dyn FnMut(ItemId) -> Result<bool>,
    ) -> Result<Self> {
        let mut removals = Removals::default();
        log::for_each(place, segments, job, &mut |view| removals.add(&view, wanted))?;
        Ok(removals)
    }

    /// Adds those of a frame.
    pub fn add(&mut self, view: &View, wanted: &mut dyn FnMut(ItemId) -> Result<bool>) -> Result<()> {
        for section in view.sections.iter().filter(|section| section.negative > 0) {
            let counts = self.collection(&section.collection);
            view.updates(section, &mut |update| {
                if update.diff < 0 && wanted(update.id)? {
                    let count = counts.entry(update.id).or_default();
                    *count = count.checked_add(update.diff).ok_or_else(|| {
                        let text = format!("the counts of collection {:?} overflow", section.collection);
                        Error::new(ErrorKind::Store, text)
                    })?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn collection(&mut self, name: &Arc<str>) -> &mut HashMap<ItemId, i64, foldhash::fast::RandomState> {
        let found = self.collections.iter().position(|(other, _)| other == name);
        let index = found.unwrap_or_else(|| {
            self.collections.push((Arc::clone(name), HashMap::default()));
            self.collections.len() - 1
        });
        &mut self.collections[index].1
    }

    /// Takes what was removed of a section's items off. Gives those that are still there, as often as they are.
    fn left_of(
        &mut self,
        view: &View,
        section: &Section,
        wanted: &mut dyn FnMut(ItemId) -> Result<bool>,
        left: &mut dyn FnMut(Update),
    ) -> Result<()> {
        let counts = self.collection(&section.collection);
        view.updates(section, &mut |update| {
            if update.diff <= 0 || !wanted(update.id)? {
                return Ok(());
            }
            let removed = counts.get_mut(&update.id);
            let before = removed.as_ref().map_or(0, |removed| **removed);
            let sum = update.diff + before; // of different signs
            if let Some(removed) = removed {
                *removed = sum.min(0);
            }
            if sum > 0 {
                left(Update { diff: sum, ..update });
            }
            Ok(())
        })
    }

    /// Reads the same segments again and gives each item that is still there with its bytes. What is left is there less than not at
    /// all.
    pub fn apply(
        mut self,
        place: &Place,
        segments: &[Segment],
        job: u64,
        wanted: &mut dyn FnMut(ItemId) -> Result<bool>,
        item: &mut dyn FnMut(&str, ItemUpdate) -> Result<()>,
    ) -> Result<Self> {
        let mut found = vec![];
        log::for_each(place, segments, job, &mut |view| {
            for section in &view.sections {
                self.left_of(&view, section, wanted, &mut |update| found.push(update))?;
                if found.is_empty() {
                    continue;
                }
                let items = view.items(place, section)?;
                // A slice holds all that was read with it: that is not worth it for a few items of many.
                let sparse = 2 * found.iter().map(|update: &Update| update.bytes.len()).sum::<usize>() < items.len();
                for Update { id, diff, bytes } in found.drain(..) {
                    let bytes = if sparse { Bytes::copy_from_slice(&items[bytes]) } else { items.slice(bytes) };
                    item(&section.collection, ItemUpdate { id, diff, bytes, rest: None })?;
                }
            }
            Ok(())
        })?;
        Ok(self)
    }

    fn refuse(&self) -> Result<()> {
        let mut collections = self.collections.iter();
        let negative =
            collections.find_map(|(name, counts)| Some((name, counts.iter().find(|(_, count)| **count < 0)?)));
        let Some((name, (id, count))) = negative else { return Ok(()) };
        let text = format!(
            "collection {name:?} has an item, {:032x}, {count} times: more were taken away than were there, a fault of the job",
            id.0
        );
        Err(Error::new(ErrorKind::Store, text))
    }

    /// What is there less than not at all.
    pub fn into_negative(self) -> impl Iterator<Item = (Arc<str>, ItemUpdate)> {
        self.collections.into_iter().flat_map(|(name, counts)| {
            counts
                .into_iter()
                .filter(|(_, diff)| *diff < 0)
                .map(move |(id, diff)| (Arc::clone(&name), ItemUpdate { id, diff, bytes: Bytes::new(), rest: None }))
        })
    }
}
