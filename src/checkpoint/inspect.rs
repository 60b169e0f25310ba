//! Reading a folder without claiming it.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::claim;
use super::disk::{Advice, Disk};
use super::log;
use super::manifest::{self, Manifest};
use super::place::Place;
use super::recover::{self, Cut};
use super::{Identity, Restored};
use crate::epoch::Epoch;
use crate::error::Result;
use crate::sink::{RunNumber, Slot};

/// What a folder held when it was looked at. Its files may go on growing, and may be removed by compaction.
pub struct Inspection {
    place: Place,
    cut: Cut,
    job: u64,
    /// The job and its settings.
    pub identity: Identity,
    /// The runs whose claims are there, ascending: the last one may write.
    pub claims: Vec<RunNumber>,
    /// Who has made the last claim; `None` if there is no claim, or none that says so.
    pub holder: Option<HolderInfo>,
    /// The numbers of the manifests that are there, ascending: the last one counts.
    pub manifests: Vec<u64>,
    /// The run that has written the last manifest.
    pub run: RunNumber,
    /// How many workers that run has.
    pub num_slots: usize,
    /// How many workers a run had at most.
    pub slots_ever: usize,
    /// The segments that the last manifest lists, in its order.
    pub segments: Vec<SegmentInfo>,
    /// Files of segments that no manifest knows: left by a crash, to be removed at the next start, or just made.
    pub unlisted: Vec<String>,
    /// Ends of logs that are no frames, in words: torn by a crash, or about to be written.
    pub torn: Vec<String>,
}

/// A segment that the last manifest lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The name of its file.
    pub file: String,
    /// The run that has written it.
    pub run: RunNumber,
    /// The worker whose log it is a part of; `None` for a base, which holds what many came to.
    pub slot: Option<Slot>,
    /// Whether its run may still append to it.
    pub open: bool,
    /// How many bytes of it count; 0 if nothing does.
    pub bytes: u64,
    /// The end of its last range that counts, if there is one.
    pub upper: Option<Epoch>,
}

/// The process that has claimed a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderInfo {
    /// Its id on its host.
    pub process: u32,
    /// Its host.
    pub host: String,
    /// Whether it is alive, where that can be known from here: its lock is never touched to find out.
    pub alive: Option<bool>,
}

/// Looks at a folder; writes nothing, not even a lock.
///
/// # Errors
///
/// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no store; [`ErrorKind::Store`](crate::ErrorKind::Store) if it
/// is damaged, or of a newer version, as a start would say.
pub fn inspect(folder: PathBuf, disk: Arc<dyn Disk>) -> Result<Inspection> {
    let place = Place { disk, folder, advice: Advice::Normal };
    let Some(manifest) = manifest::newest(&place)? else { return Err(manifest::none(&place)) };
    let claims: Vec<_> = place.numbers(&place.claims())?.into_iter().map(RunNumber).collect();
    let holder = match claims.last() {
        Some(run) => claim::holder(&place, *run)?,
        None => None,
    };
    let manifests = manifest::list(&place)?;
    let cut = recover::cut(&place, &manifest)?;
    let names = place.names(&place.segments())?;
    let segments = infos(&manifest, &cut);
    let unlisted = names.into_iter().filter(|name| segments.iter().all(|segment| segment.file != *name)).collect();
    let torn = cut.torn.iter().map(|torn| format!("{:?}, byte {}: {}", torn.path, torn.position, torn.why)).collect();
    let Manifest { identity, run, num_slots, slots_ever, .. } = manifest;
    let job = log::hash_of_job(&identity.job);
    Ok(Inspection {
        place,
        cut,
        job,
        identity,
        claims,
        holder,
        manifests,
        run,
        num_slots,
        slots_ever,
        segments,
        unlisted,
        torn,
    })
}

fn infos(manifest: &Manifest, cut: &Cut) -> Vec<SegmentInfo> {
    let info = |segment: &manifest::Segment| {
        let file = segment.name();
        let end = cut.segments.iter().find(|other| other.name() == file).and_then(|other| other.end);
        SegmentInfo {
            file,
            run: segment.run,
            slot: segment.slot,
            open: segment.end.is_none(),
            bytes: end.map_or(0, |end| end.bytes),
            upper: end.map(|end| end.upper),
        }
    };
    manifest.segments.iter().map(info).collect()
}

impl Inspection {
    /// Everything but the items of state, as the next run will load it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`](crate::ErrorKind::Store) if a segment is damaged, or was removed by compaction since.
    pub fn restored(&self) -> Result<Restored> {
        recover::restored(&self.place, &self.cut, self.job)
    }

    /// The state is whole up to this epoch.
    pub fn upper(&self) -> Epoch {
        self.cut.upper
    }

    /// The first epoch of what counts in a segment that the last manifest lists; `None` if nothing does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`](crate::ErrorKind::Store) if the segment is damaged at its front.
    pub fn lower(&self, segment: &SegmentInfo) -> Result<Option<Epoch>> {
        let Some(segment) = self.cut.segments.iter().find(|other| other.name() == segment.file) else {
            return Ok(None);
        };
        Ok(log::Reader::open(&self.place, segment, self.job)?.next()?.map(|view| view.lower))
    }

    /// Reads every byte that counts and checks it. Returns how many frames and bytes these are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`](crate::ErrorKind::Store) that names the first file and byte where something is wrong.
    pub fn verify(&self) -> Result<(u64, u64)> {
        let mut frames = 0;
        log::for_each(&self.place, &self.cut.segments, self.job, &mut |view| {
            frames += 1;
            for section in &view.sections {
                view.updates(section, &mut |_| Ok(()))?;
                view.items(&self.place, section)?;
            }
            view.outbox()?;
            view.outgoing(&self.place).map(drop)
        })?;
        recover::check_balance(&self.place, &self.cut.segments, self.job)?;
        Ok((frames, self.segments.iter().map(|segment| segment.bytes).sum()))
    }

    /// Calls `item` for each item of state, as often as it is there, with the name of its collection; in no order.
    ///
    /// # Errors
    ///
    /// Those of `item`, and [`ErrorKind::Store`](crate::ErrorKind::Store) as in [`restored`](Self::restored).
    pub fn items(&self, item: &mut dyn FnMut(&str, Bytes) -> Result<()>) -> Result<()> {
        recover::items(&self.place, &self.cut.segments, self.job, &mut |_| true, &mut |name, times, bytes| {
            (0..times).try_for_each(|_| item(name, bytes.clone()))
        })
    }
}
