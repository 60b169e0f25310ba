//! The store in a folder.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use bytes::Bytes;
use crossbeam_channel::{Sender, bounded};

use super::compact::{Compactor, Shared, Sizes};
use super::disk::{Advice, DRAFT, Disk, DiskFile};
use super::log::{self, Appender};
use super::manifest::{self, End, Manifest, Segment, fenced, hex};
use super::place::Place;
use super::recover::{self, Cut};
use super::{Begin, Claim, Frame, Restored, Share, Store, claim, identity};
use crate::crash;
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::Slot;

/// A store in a folder, which the workers of all processes share: each has an object of its own.
///
/// ```text
/// claims/       which run may write: a file for each run
/// manifests/    what exists: the one with the highest number counts, and what it does not list does not exist
/// segments/     the frames: a log for each worker and run, and bases, which hold what older logs came to
/// ```
///
/// Nothing that counts is ever changed: segments are appended to, everything else is made as a new file. After an append that
/// failed, the worker goes on in a new segment, and a manifest says where the old one ends; so no run can cut off what a newer one
/// has already read.
pub struct FolderStore {
    place: Place,
    slot: Slot,
    sizes: Sizes,
    claim: Option<Claim>,
    /// Shows the others that the run lives.
    lock: Option<Box<dyn DiskFile>>,
    /// What this run has begun with.
    begun: Option<(Manifest, Cut)>,
    log: Option<Log>,
    shared: Arc<Shared>,
    compaction: Option<Compaction>,
}

/// The log of a worker.
struct Log {
    claim: Claim,
    job: u64,
    segment: Segment,
    /// None if something went wrong: then the segment ends at `end`, and the next frame goes into a new one.
    open: Option<Appender>,
    /// The end of what is durable in the segment, if there is anything.
    end: Option<End>,
    /// How many frames were appended to the segment.
    frames: u64,
    /// The end of the last range.
    upper: Epoch,
}

/// The thread that compacts.
struct Compaction {
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FolderStore {
    /// The store of the worker with this number in a folder, which need not exist.
    pub fn new(folder: PathBuf, disk: Arc<dyn Disk>, slot: Slot) -> Self {
        FolderStore {
            place: Place { disk, folder, advice: Advice::Normal },
            slot,
            sizes: Sizes::default(),
            claim: None,
            lock: None,
            begun: None,
            log: None,
            shared: Arc::default(),
            compaction: None,
        }
    }

    /// Begins a new segment when those that all workers write to have so many bytes together. The default is 32 MiB: smaller files can
    /// be compacted sooner, and are more.
    #[must_use]
    pub fn with_segment_bytes(mut self, bytes: u64) -> Self {
        self.sizes.segment = bytes;
        self
    }

    /// Compacts when there are so many bytes more than half of those in bases. The default is 64 MiB.
    #[must_use]
    pub fn with_slack_bytes(mut self, bytes: u64) -> Self {
        self.sizes.slack = bytes;
        self
    }

    /// Counts each frame as so many bytes at least, where it is decided when a new segment begins and when to compact. The default is
    /// 0; where every append is a file of its own, it is their number that costs.
    #[must_use]
    pub fn with_least_frame_bytes(mut self, bytes: u64) -> Self {
        self.sizes.least = bytes;
        self
    }

    /// How many workers a run of this job has had at most, this run included once it has begun; 0 for a new folder. Each was a
    /// writer slot, which may have left something open at a broker.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`] if the folder cannot be read.
    pub fn slots_ever(&self) -> Result<usize> {
        Ok(manifest::newest(&self.place)?.map_or(0, |manifest| manifest.slots_ever))
    }

    #[cfg(test)]
    pub(super) fn with_sizes(mut self, sizes: Sizes) -> Self {
        self.sizes = sizes;
        self
    }

    #[cfg(test)]
    pub(super) fn roll(&mut self) -> Result<()> {
        let (place, slot) = (self.place.clone(), self.slot);
        self.open_log()?.roll(&place, slot)
    }

    /// Gives the reason of an error, if that is another run: a newer one clears away what this one works with.
    fn or_fenced<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let check = self.claim.map_or(Ok(()), |claim| claim::check(&self.place, claim));
            check.err().filter(|check| check.kind() == ErrorKind::Fenced).unwrap_or(error)
        })
    }

    fn claimed(&self) -> Result<Claim> {
        self.claim.ok_or_else(|| out_of_order("a claim"))
    }

    fn begun(&self) -> Result<&(Manifest, Cut)> {
        self.begun.as_ref().ok_or_else(|| out_of_order("begin or join"))
    }

    fn job(&self) -> Result<u64> {
        Ok(log::hash_of_job(&self.begun()?.0.identity.job))
    }

    /// What the workers of this run append to, empty.
    fn create_segments(&self, claim: Claim, begin: &Begin) -> Result<Vec<Segment>> {
        let job = log::hash_of_job(&begin.identity.job);
        let create = |slot| log::create(&self.place, job, claim.run, Some(Slot(slot)), 0);
        let segments = (0..begin.num_slots).map(create).collect::<Result<_>>()?;
        self.place.sync(&self.place.segments())?;
        crash::point("checkpoint.segments_created");
        Ok(segments)
    }

    /// Decides what is left of the last run, and says so in a manifest that nobody else has made first.
    fn write_begin(&self, claim: Claim, begin: &Begin, open: &[Segment]) -> Result<Manifest> {
        loop {
            claim::check(&self.place, claim)?;
            let newest = manifest::newest(&self.place)?;
            let mut next = Manifest {
                number: 1,
                run: claim.run,
                nonce: hex(claim.nonce),
                identity: begin.identity.clone(),
                num_slots: begin.num_slots,
                slots_ever: begin.num_slots,
                upper: 0,
                above: 0,
                segments: vec![],
            };
            if let Some(last) = newest {
                if last.run == claim.run && last.nonce == next.nonce {
                    manifest::settle(&self.place)?;
                    return Ok(last);
                }
                if last.run >= claim.run {
                    return Err(fenced(&self.place, claim.run, last.run));
                }
                identity::check(&self.place.folder, &last.identity, begin)?;
                let cut = recover::cut(&self.place, &last)?;
                for torn in &cut.torn {
                    tracing::warn!(file = ?torn.path, byte = torn.position, why = torn.why, "the end of a log is cut off");
                }
                // The last run may have died before it synced; from here on others rely on it.
                for segment in &cut.unsynced {
                    let path = self.place.segments().join(segment.name());
                    let synced = self.place.disk.sync_file(&path);
                    synced.map_err(|error| super::place::failed("be synced", &path, error))?;
                }
                next.number = last.number + 1;
                next.slots_ever = begin.num_slots.max(last.slots_ever);
                (next.upper, next.above, next.segments) = (cut.upper, cut.above, cut.segments);
            }
            next.segments.extend_from_slice(open);
            manifest::create(&self.place, &next)?;
            crash::point("checkpoint.manifest_created");
        }
    }

    /// Removes what earlier runs have left behind without a name in the manifest.
    fn tidy(&self, claim: Claim, manifest: &Manifest) -> Result<()> {
        claim::tidy(&self.place, claim)?;
        let listed: Vec<String> = manifest.segments.iter().map(Segment::name).collect();
        let folder = self.place.segments();
        for name in self.place.names(&folder)? {
            if Segment::is_name_up_to(&name, claim.run) && !listed.contains(&name) {
                self.place.remove(&folder.join(name));
            }
        }
        for folder in [self.place.claims(), self.place.manifests()] {
            for name in self.place.names(&folder)?.into_iter().filter(|name| name.ends_with(DRAFT)) {
                self.place.remove(&folder.join(name));
            }
        }
        crash::point("checkpoint.tidied");
        Ok(())
    }

    /// What counts of the run before.
    fn set_begun(&mut self, manifest: Manifest, claim: Claim) {
        let before = |segment: &&Segment| segment.run < claim.run;
        let segments = manifest.segments.iter().filter(before).cloned().collect();
        let cut = Cut { upper: manifest.upper, above: manifest.above, segments, unsynced: vec![], torn: vec![] };
        self.begun = Some((manifest, cut));
    }

    fn open_log(&mut self) -> Result<&mut Log> {
        if self.log.is_none() {
            let (claim, job, (manifest, cut)) = (self.claimed()?, self.job()?, self.begun()?);
            let own = |segment: &&Segment| segment.run == claim.run && segment.slot == Some(self.slot);
            let segment = manifest.segments.iter().find(own).cloned().ok_or_else(|| out_of_order("begin or join"))?;
            claim::check(&self.place, claim)?;
            let open = Some(Appender::open(&self.place, &segment)?);
            self.log = Some(Log { claim, job, segment, open, end: None, frames: 0, upper: cut.upper });
        }
        self.log.as_mut().ok_or_else(|| out_of_order("begin or join"))
    }

    fn try_append(&mut self, frame: &Frame) -> Result<()> {
        let (place, slot, shared) = (self.place.clone(), self.slot, Arc::clone(&self.shared));
        let (most, least) = (self.sizes.log(self.begun()?.0.num_slots), self.sizes.least);
        let log = self.open_log()?;
        if frame.lower < log.upper || frame.upper < frame.lower {
            let text = format!(
                "frame [{}, {}) does not follow on what is durable below {}: a fault of the job",
                frame.lower, frame.upper, log.upper
            );
            return Err(Error::new(ErrorKind::Store, text));
        }
        match log.write(&place, (most, least), slot, frame) {
            Ok(bytes) => {
                log.end = Some(End { bytes, upper: frame.upper });
                log.upper = frame.upper;
                let _ = shared.first.compare_exchange(0, frame.upper, Ordering::SeqCst, Ordering::SeqCst);
                shared.published.fetch_max(frame.published, Ordering::SeqCst);
                Ok(())
            }
            Err(error) => {
                log.open = None;
                Err(error)
            }
        }
    }

    pub(super) fn compactor(&self) -> Result<Compactor> {
        // What it reads is replaced by something else.
        let (place, shared) = (Place { advice: Advice::NoReuse, ..self.place.clone() }, Arc::clone(&self.shared));
        Ok(Compactor { place, claim: self.claimed()?, sizes: self.sizes, shared })
    }
}

/// The fault of a caller.
fn out_of_order(before: &str) -> Error {
    Error::new(ErrorKind::Store, format!("the store was used before {before}"))
}

impl Log {
    /// Appends and syncs, in a new segment if there are so many bytes in this one, each frame of at least so many; nothing counts yet.
    fn write(&mut self, place: &Place, (most, least): (u64, u64), slot: Slot, frame: &Frame) -> Result<u64> {
        let is_full = |open: &Appender| open.position().max(self.frames * least) >= most;
        if self.open.as_ref().is_none_or(is_full) {
            self.roll(place, slot)?;
        }
        let Some(open) = &mut self.open else { return Err(out_of_order("its log was open")) };
        self.frames += 1;
        open.append(frame, slot)?;
        crash::point("checkpoint.appended");
        open.sync()?;
        crash::point("checkpoint.synced");
        claim::check(place, self.claim)?;
        Ok(open.position())
    }

    /// Goes on in a new segment, which a manifest names together with the end of this one.
    fn roll(&mut self, place: &Place, slot: Slot) -> Result<()> {
        self.open = None;
        claim::check(place, self.claim)?;
        let next = log::create(place, self.job, self.claim.run, Some(slot), self.segment.sequence + 1)?;
        place.sync(&place.segments())?;
        crash::point("checkpoint.segment_created");
        manifest::change(place, self.claim, &mut |manifest| {
            if manifest.segments.contains(&next) {
                return Ok(false);
            }
            // Besides the own segment there may be one that was named by a try that failed, and which is empty.
            let is_open = |segment: &Segment| segment.slot == Some(slot) && segment.end.is_none();
            for segment in manifest.segments.iter_mut().filter(|segment| **segment == self.segment) {
                segment.end = self.end;
            }
            manifest.segments.retain(|segment| !is_open(segment));
            manifest.segments.push(next.clone());
            Ok(true)
        })?;
        crash::point("checkpoint.rolled");
        let empty = self.end.is_none();
        let old = std::mem::replace(&mut self.segment, next);
        (self.end, self.frames) = (None, 0);
        if empty {
            place.remove(&place.segments().join(old.name()));
        }
        self.open = Some(Appender::open(place, &self.segment)?);
        Ok(())
    }
}

impl Store for FolderStore {
    fn keeps(&self) -> bool {
        true
    }

    fn claim(&mut self, take_over: bool) -> Result<Claim> {
        let (claim, lock) = claim::claim(&self.place, take_over)?;
        (self.claim, self.lock) = (Some(claim), Some(lock));
        Ok(claim)
    }

    fn begin(&mut self, begin: &Begin) -> Result<()> {
        let claim = self.claimed()?;
        // Before anything is made: most often this is what is refused.
        if let Some(last) = manifest::newest(&self.place)? {
            identity::check(&self.place.folder, &last.identity, begin)?;
        }
        let open = self.create_segments(claim, begin)?;
        let manifest = self.or_fenced(self.write_begin(claim, begin, &open))?;
        crash::point("checkpoint.begun");
        self.tidy(claim, &manifest)?;
        self.set_begun(manifest, claim);
        Ok(())
    }

    fn join(&mut self, claim: Claim) -> Result<()> {
        let newest = match claim::is_there(&self.place, claim)? {
            true => manifest::newest(&self.place)?,
            false => None,
        };
        match newest {
            Some(manifest) if manifest.run == claim.run && manifest.nonce == hex(claim.nonce) => {
                if self.slot.0 >= manifest.num_slots {
                    let text = format!("worker {} is not one of the {} of the run", self.slot.0, manifest.num_slots);
                    return Err(Error::new(ErrorKind::Config, text));
                }
                self.claim = Some(claim);
                self.set_begun(manifest, claim);
                Ok(())
            }
            Some(manifest) if manifest.run > claim.run => Err(fenced(&self.place, claim.run, manifest.run)),
            _ => {
                let text = format!(
                    "the folder is not shared between the processes: worker 0 has begun run {}, and that is not seen in {:?} here",
                    claim.run.0, self.place.folder
                );
                Err(Error::new(ErrorKind::Config, text))
            }
        }
    }

    fn load(&mut self) -> Result<Restored> {
        let restored = recover::restored(&self.place, &self.begun()?.1, self.job()?);
        self.or_fenced(restored)
    }

    fn items(&mut self, share: Share, item: &mut dyn FnMut(&str, i64, Bytes) -> Result<()>) -> Result<()> {
        let (segments, job) = (&self.begun()?.1.segments, self.job()?);
        let items = recover::items(&self.place, segments, job, &mut |id| share.has(id), item);
        self.or_fenced(items)
    }

    fn append(&mut self, frame: &Frame) -> Result<()> {
        let appended = self.try_append(frame);
        self.or_fenced(appended)
    }

    fn compact(&mut self) -> Result<()> {
        if self.compaction.is_none() {
            self.compaction = Some(Compaction::start(self.compactor()?)?);
        }
        if let Some(wake) = self.compaction.as_ref().and_then(|compaction| compaction.wake.as_ref()) {
            // It is full if the thread is at work, and without a reader if it was fenced: the next append says so.
            let _ = wake.try_send(());
        }
        Ok(())
    }
}

impl Compaction {
    fn start(compactor: Compactor) -> Result<Self> {
        let (wake, woken) = bounded(1);
        let run = move || {
            while woken.recv().is_ok() {
                match compactor.run() {
                    Err(error) if error.kind() == ErrorKind::Fenced => return,
                    Err(_) if compactor.shared.stop.load(Ordering::SeqCst) => return,
                    Err(error) => {
                        tracing::warn!(error = error.report(), "the store could not be compacted: this is tried again");
                    }
                    Ok(_) => {}
                }
            }
        };
        let thread = std::thread::Builder::new().name("compaction".to_owned()).spawn(run).map_err(|error| {
            Error::new(ErrorKind::Store, "the thread for compaction cannot be started").with_source(error).retryable()
        })?;
        Ok(Compaction { wake: Some(wake), thread: Some(thread) })
    }
}

impl Drop for FolderStore {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(compaction) = &mut self.compaction {
            compaction.wake = None;
            if compaction.thread.take().is_some_and(|thread| thread.join().is_err()) {
                tracing::warn!("the thread for compaction has panicked");
            }
        }
    }
}
