//! Compaction: puts segments together into a base that holds their net content.
//!
//! Any segments can be replaced so: what counts is the sum over all that are left. Logs are, and bases that are small; a large base stays
//! until a part of what is in bases was taken away again by later ones, because most of what has lived that long goes on living.
//!
//! Only what is durable on all workers goes into a base: the bound known to be published says so, because nothing is published before.
//! A base is written in full and synced, then a manifest names it in place of what it replaces, then that is removed. A crash before
//! the manifest leaves files that nobody knows, which the next start removes.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::log::{self, Appender, START};
use super::manifest::{self, End, Manifest, Segment};
use super::place::Place;
use super::recover::{self, Cut, Loaded, Removals};
use super::{Changes, Claim, Frame, ItemId, ItemUpdate, claim};
use crate::crash;
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::Slot;

/// How large the files of a store are, how much of it is worth compacting, and how much memory that takes. In bytes, but for updates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// A segment that is larger is followed by a new one.
    pub segment: u64,
    /// Compaction waits until there is so much more than half of the bases. What lives is at least three quarters of these; so there
    /// are then twice what lives and this, and while a new base is written, that one: three times.
    pub slack: u64,
    /// Compaction puts items of so many bytes into a frame.
    pub frame: usize,
    /// Compaction remembers so many negative updates at a time; the others wait for another pass over the indexes.
    pub pass: u64,
    /// A frame counts as so many bytes at least.
    pub least: u64,
}

impl Sizes {
    /// A log that has so many bytes is followed by a new one.
    pub fn log(&self, num_slots: usize) -> u64 {
        (self.segment / num_slots.max(1) as u64).max(START + 1)
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes { segment: 32 << 20, slack: 64 << 20, frame: 4 << 20, pass: 2 << 20, least: 0 }
    }
}

/// What the store and its thread tell each other.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Everything below was published on all workers.
    pub published: AtomicU64,
    /// The end of the first range that this run has made durable; 0 before.
    pub first: AtomicU64,
    /// The store is gone.
    pub stop: AtomicBool,
    /// What is in the bases of this run, by their nonce.
    bases: Mutex<HashMap<u64, Content>>,
}

/// How many updates there are in bases.
#[derive(Clone, Copy, Debug, Default)]
struct Content {
    added: u64,
    /// Of items that are in other segments.
    removed: u64,
}

/// Compacts a store.
pub(super) struct Compactor {
    pub place: Place,
    pub claim: Claim,
    pub sizes: Sizes,
    pub shared: Arc<Shared>,
}

impl Compactor {
    /// Compacts if that is worth it; whether it did.
    pub fn run(&self) -> Result<bool> {
        let (first, published) =
            (self.shared.first.load(Ordering::SeqCst), self.shared.published.load(Ordering::SeqCst));
        if first == 0 || published < first {
            return Ok(false); // Some worker may still be reading what the last run has left.
        }
        let manifest = manifest::own(&self.place, self.claim)?;
        let durable = |s: &&Segment| s.end.is_some_and(|end| end.upper <= published);
        let (bases, logs): (Vec<_>, Vec<_>) =
            manifest.segments.iter().filter(durable).cloned().partition(|s| s.slot.is_none());
        // Where small frames count for more than their bytes, a log is as large as it may be when a new one follows.
        let least = if self.sizes.least > 0 { self.sizes.log(manifest.num_slots) } else { 0 };
        let written: u64 = logs.iter().map(|log| size(log).max(least)).sum();
        if logs.is_empty() || written <= bases.iter().map(size).sum::<u64>() / 2 + self.sizes.slack {
            return Ok(false);
        }
        let old = [logs, self.worn(bases)].concat();
        let mut base = Base::new(self, &manifest);
        if let Err(error) = self.write(&mut base, &old, &manifest, published) {
            base.abandon();
            return Err(error);
        }
        // If this fails a manifest may name the new files nevertheless: they stay until the next start knows.
        self.replace(&old, &base.segments, &manifest)?;
        base.tell();
        crash::point("checkpoint.replaced");
        for segment in &old {
            self.place.remove(&self.place.segments().join(segment.name()));
        }
        crash::point("checkpoint.removed");
        Ok(true)
    }

    /// The bases that are worth writing anew.
    fn worn(&self, bases: Vec<Segment>) -> Vec<Segment> {
        let mut known = self.shared.bases.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|nonce, _| bases.iter().any(|base| base.nonce == *nonce)); // others were replaced
        let contents = bases.iter().map(|base| known.get(&base.nonce));
        let sum = contents.into_iter().try_fold(Content::default(), |sum, content| {
            content
                .map(|&Content { added, removed }| Content { added: sum.added + added, removed: sum.removed + removed })
        });
        let fresh = sum.is_some_and(|sum| sum.removed <= sum.added / 4);
        bases.into_iter().filter(|base| !fresh || size(base) < self.sizes.segment / 2).collect()
    }

    fn job(&self, manifest: &Manifest) -> u64 {
        log::hash_of_job(&manifest.identity.job)
    }

    fn go_on(&self) -> Result<()> {
        match self.shared.stop.load(Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::Store, "compaction was stopped")),
            false => Ok(()),
        }
    }

    fn write(&self, base: &mut Base<'_>, old: &[Segment], manifest: &Manifest, published: Epoch) -> Result<()> {
        let job = self.job(manifest);
        let upper = old.iter().filter_map(|s| s.end).map(|end| end.upper).max().unwrap_or_default();
        let cut = Cut { upper, above: upper, segments: old.to_vec(), unsynced: vec![], torn: vec![] };
        // Most often what was removed is known after one look at each index.
        let mut removals = Some(Removals::default());
        let mut negative = 0;
        let Loaded { restored, marks, .. } = recover::load(&self.place, &cut, job, &mut |view| {
            negative += view.sections.iter().map(|section| section.negative).sum::<u64>();
            removals = removals.take().filter(|_| negative < self.sizes.pass);
            removals.as_mut().map_or(Ok(()), |removals| removals.add(view, &mut |_| self.go_on().map(|()| true)))
        })?;
        let (clock, published) = (restored.clock, restored.published.max(published));
        base.append(&Frame { upper, clock, published, ..Frame::default() }, Slot(0))?;
        // Marks keep the ends of their ranges: other logs may have later ones, below `upper`.
        let mut frames: BTreeMap<Epoch, Frame> = BTreeMap::new();
        for (upper, mark) in marks.into_values() {
            frames.entry(upper).or_insert_with(|| Frame { upper, ..Frame::default() }).splits.push(mark);
        }
        for frame in frames.into_values() {
            base.append(&frame, Slot(0))?;
        }
        let passes = u128::from(negative / self.sizes.pass + 1);
        for pass in 0..passes {
            let mut wanted = |id: ItemId| self.go_on().map(|()| passes == 1 || id.0 % passes == pass);
            let removals = match removals.take() {
                Some(all) => all,
                None => Removals::of(&self.place, old, job, &mut wanted)?,
            };
            let removals = removals.apply(&self.place, old, job, &mut wanted, &mut |name, update| {
                self.go_on()?;
                base.put(name, update)
            })?;
            for (name, update) in removals.into_negative() {
                base.put(&name, update)?;
            }
        }
        base.finish()?;
        crash::point("checkpoint.base_written");
        Ok(())
    }

    /// Names the base in place of the segments that it replaces.
    fn replace(&self, old: &[Segment], base: &[Segment], known: &Manifest) -> Result<()> {
        claim::check(&self.place, self.claim)?;
        let upper = old.iter().filter(|s| s.run == self.claim.run).filter_map(|s| s.end).map(|end| end.upper).max();
        manifest::change(&self.place, self.claim, &mut |manifest| {
            let listed = |wanted: &Segment| manifest.segments.iter().any(|segment| segment == wanted);
            match (base.iter().all(listed), old.iter().all(listed)) {
                (true, _) => return Ok(false),
                (false, true) => {}
                (false, false) => {
                    let text = format!("somebody else compacts folder {:?} in run {}", self.place.folder, known.run.0);
                    return Err(Error::new(ErrorKind::Store, text));
                }
            }
            manifest.segments.retain(|segment| !old.contains(segment));
            manifest.segments.extend_from_slice(base);
            // These were durable on all workers, and logs no longer say it.
            manifest.upper = manifest.upper.max(upper.unwrap_or_default());
            Ok(true)
        })?;
        Ok(())
    }
}

fn size(segment: &Segment) -> u64 {
    segment.end.map_or(0, |end| end.bytes)
}

/// Writes the segments of a base.
struct Base<'a> {
    compactor: &'a Compactor,
    job: u64,
    upper: Epoch,
    segments: Vec<Segment>,
    /// What is in each of them.
    contents: Vec<Content>,
    open: Option<Appender>,
    sequence: u64,
    /// What goes into the next frame, by collection.
    changes: BTreeMap<String, Vec<ItemUpdate>>,
    bytes: usize,
}

impl<'a> Base<'a> {
    fn new(compactor: &'a Compactor, manifest: &Manifest) -> Self {
        let job = compactor.job(manifest);
        Base {
            compactor,
            job,
            upper: 0,
            segments: vec![],
            contents: vec![],
            open: None,
            sequence: 0,
            changes: BTreeMap::new(),
            bytes: 0,
        }
    }

    fn append(&mut self, frame: &Frame, slot: Slot) -> Result<()> {
        let Compactor { place, claim, sizes, .. } = self.compactor;
        self.upper = self.upper.max(frame.upper);
        let open = match &mut self.open {
            Some(open) => open,
            none => {
                let segment = log::create(place, self.job, claim.run, None, self.sequence)?;
                self.sequence = segment.sequence + 1;
                let open = Appender::open(place, &segment)?;
                self.segments.push(segment);
                self.contents.push(Content::default());
                none.insert(open)
            }
        };
        open.append(frame, slot)?;
        if let Some(content) = self.contents.last_mut() {
            let updates = || frame.changes.iter().flat_map(|changes| &changes.updates);
            let removed = updates().filter(|update| update.diff < 0).count() as u64;
            content.removed += removed;
            content.added += updates().count() as u64 - removed;
        }
        if open.position() >= sizes.segment.max(START) { self.close() } else { Ok(()) }
    }

    fn put(&mut self, name: &str, update: ItemUpdate) -> Result<()> {
        self.bytes += update.bytes.len() + 32;
        match self.changes.get_mut(name) {
            Some(updates) => updates.push(update),
            None => {
                self.changes.insert(name.to_owned(), vec![update]);
            }
        }
        if self.bytes >= self.compactor.sizes.frame { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if self.changes.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        let changes =
            std::mem::take(&mut self.changes).into_iter().map(|(collection, updates)| Changes { collection, updates });
        let changes = changes.collect();
        self.append(&Frame { upper: self.upper, changes, ..Frame::default() }, Slot(0))
    }

    fn close(&mut self) -> Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        open.sync()?;
        if let Some(segment) = self.segments.last_mut() {
            segment.end = Some(End { bytes: open.position(), upper: self.upper });
        }
        Ok(())
    }

    /// The next compaction knows what is in it.
    fn tell(&self) {
        let contents = self.segments.iter().map(|segment| segment.nonce).zip(self.contents.iter().copied());
        self.compactor.shared.bases.lock().unwrap_or_else(PoisonError::into_inner).extend(contents);
    }

    /// Removes what was written.
    fn abandon(mut self) {
        self.open = None;
        for segment in &self.segments {
            self.compactor.place.remove(&self.compactor.place.segments().join(segment.name()));
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.flush()?;
        self.close()?;
        self.compactor.place.sync(&self.compactor.place.segments())
    }
}
