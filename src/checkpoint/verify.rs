//! Reading all of a folder and saying everything that is wrong with it.

use bytes::Bytes;

use super::frame::MEND;
use super::location::Location;
use super::log::{self, Reader};
use super::manifest::{self, Manifest, Segment};
use super::place::Place;
use super::recover;
use super::still;
use super::view::View;
use crate::error::Result;

/// What [`verify`] has read and found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Segments that the newest manifest lists.
    pub segments: usize,
    /// Frames that were whole.
    pub frames: u64,
    /// Bytes of segments that were whole, heads included.
    pub bytes: u64,
    /// What is wrong, each on one line with its file, position and what to do.
    pub problems: Vec<String>,
    /// What looks wrong and is harmless, such as the torn end of a log, each on one line.
    pub harmless: Vec<String>,
}

/// How far [`verify`] has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyStep {
    /// The number of the segment that is being read, from 0; that of all at the end, where sums are made.
    pub segment: usize,
    /// How many segments there are.
    pub segments: usize,
    /// Bytes of segments that were read.
    pub bytes: u64,
}

/// Reads a store, beside its job if it runs: manifests, segments and every frame, their checksums and how they fit together. Calls
/// `item` with each item that was ever added and the name of its collection, to hold its bytes against what they should be; and
/// `step` after each frame.
///
/// # Errors
///
/// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no store; that the folder cannot be listed. Everything else
/// is a problem of the result.
pub fn verify(
    location: &Location,
    item: &mut dyn FnMut(&str, Bytes) -> Result<()>,
    step: &mut dyn FnMut(VerifyStep),
) -> Result<Verified> {
    let fine = |looked: &Result<Verified>| looked.as_ref().is_ok_and(|found| found.problems.is_empty());
    still::settled(location, &mut |place| look(&place, item, step), &fine)?
}

fn look(
    place: &Place,
    item: &mut dyn FnMut(&str, Bytes) -> Result<()>,
    step: &mut dyn FnMut(VerifyStep),
) -> Result<Verified> {
    let mut found = Verified::default();
    let numbers = manifest::list(place)?;
    let Some((_, older)) = numbers.split_last() else { return Err(manifest::none(place)) };
    for number in older {
        // It may have been removed since, being old.
        if let Err(error) = manifest::read(place, *number) {
            found.harmless.push(format!("{}; it is an older manifest, which nothing needs", error.report()));
        }
    }
    let manifest = match manifest::newest(place) {
        Ok(Some(manifest)) => manifest,
        Ok(None) => return Err(manifest::none(place)),
        Err(error) => {
            found.problems.push(error.report());
            return Ok(found);
        }
    };
    found.segments = manifest.segments.len();
    let job = log::hash_of_job(&manifest.identity.job);
    for (number, segment) in manifest.segments.iter().enumerate() {
        let step = &mut |bytes| step(VerifyStep { segment: number, segments: manifest.segments.len(), bytes });
        if let Err(error) = read(place, segment, job, &mut found, item, step) {
            found.problems.push(error.report());
        }
    }
    step(VerifyStep { segment: found.segments, segments: found.segments, bytes: found.bytes });
    if found.problems.is_empty()
        && let Err(error) = fits(place, &manifest, job)
    {
        found.problems.push(error.report());
    }
    let listed: Vec<String> = manifest.segments.iter().map(Segment::name).collect();
    let names = place.names(&place.segments())?;
    for name in names.into_iter().filter(|name| !listed.contains(name)) {
        let path = place.segments().join(name);
        found.harmless.push(format!("{path:?} is in no manifest: it was just made, or is removed at the next start"));
    }
    Ok(found)
}

/// Reads a segment to its end, or to the first frame that cannot be read.
fn read(
    place: &Place,
    segment: &Segment,
    job: u64,
    found: &mut Verified,
    item: &mut dyn FnMut(&str, Bytes) -> Result<()>,
    step: &mut dyn FnMut(u64),
) -> Result<()> {
    let mut reader = Reader::open(place, segment, job)?;
    let mut last = reader.position();
    found.bytes += last;
    loop {
        let start = reader.position();
        let next = match segment.end {
            Some(_) => reader.next()?.ok_or(None),
            None => reader.next_of_open()?,
        };
        let view = match next {
            Ok(view) => view,
            Err(None) => return Ok(()),
            Err(Some(why)) => {
                let path = place.segments().join(segment.name());
                found.harmless.push(format!(
                    "{path:?}, byte {start}: {why}; this is the end of the newest run's log, torn by a crash or just being \
                     written, and the next start cuts it off"
                ));
                return Ok(());
            }
        };
        found.frames += 1;
        found.bytes += reader.position() - last;
        last = reader.position();
        check(&view, place, segment, start, found, item)?;
        step(found.bytes);
    }
}

/// Holds the items of a frame against what they should be; the first that is not is a problem.
fn check(
    view: &View,
    place: &Place,
    segment: &Segment,
    start: u64,
    found: &mut Verified,
    item: &mut dyn FnMut(&str, Bytes) -> Result<()>,
) -> Result<()> {
    let mut wrong = None;
    for section in &view.sections {
        let items = view.items(place, section)?;
        let name = &section.collection;
        view.updates(section, &mut |update| {
            if update.diff >= 0
                && let Err(error) = item(name, items.slice(update.bytes))
            {
                wrong.get_or_insert_with(|| format!("collection {name:?}: {}", error.report()));
            }
            Ok(())
        })?;
    }
    view.outbox()?;
    view.outgoing(place)?;
    if let Some(wrong) = wrong {
        let path = place.segments().join(segment.name());
        found.problems.push(format!("{path:?}, frame at byte {start}, {wrong}; {MEND}"));
    }
    Ok(())
}

/// Whether logs end where others do, and no item is there less than not at all.
fn fits(place: &Place, manifest: &Manifest, job: u64) -> Result<()> {
    let cut = recover::cut(place, manifest)?;
    recover::check_balance(place, &cut.segments, job)
}
