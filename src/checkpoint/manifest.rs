//! Manifests: what exists. Each is a whole list, and the one with the highest number counts.
//!
//! A manifest is a line with the format's version, a document, and a line with the CRC32C of what is before:
//!
//! ```text
//! syncline manifest 1
//! {"number":2,"run":1,...}
//! crc32c 0123abcd
//! ```
//!
//! Number N+1 is made only if nobody has made it, from what N says; so of two that change something at once one sees what the other
//! did. All changes of a store, be it a start, a new segment or a compaction, are new manifests.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::frame::MEND;
use super::place::{Place, numbered};
use super::{Claim, Identity};
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::{RunNumber, Slot};

/// The version of manifests and segments that is written, and the highest that is read.
pub(super) const VERSION: u32 = 1;

const TITLE: &str = "syncline manifest ";
const CRC: &str = "crc32c ";

/// So many older manifests are left, for people who want to know what happened.
const KEPT: u64 = 8;

/// The end of what counts in a segment that is no longer written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    /// Bytes; what comes after does not exist.
    pub bytes: u64,
    /// The end of its last range.
    pub upper: Epoch,
}

/// A file of frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Segment {
    /// The run that has written it.
    pub run: RunNumber,
    /// The worker whose log it is a part of; none for the net content of many.
    pub slot: Option<Slot>,
    /// Its place among those of this run and slot.
    pub sequence: u64,
    /// Tells it from a file of the same name.
    pub nonce: u64,
    /// Where it ends. None while it is written.
    pub end: Option<End>,
}

impl Segment {
    /// The name of its file.
    pub fn name(&self) -> String {
        let log = self.slot.map_or("base".to_owned(), |slot| format!("{:05}", slot.0));
        format!("{}-{log}-{:06}", numbered(self.run.0), self.sequence)
    }

    /// Whether this is the name of a segment of this run or an older one.
    pub fn is_name_up_to(name: &str, run: RunNumber) -> bool {
        let first = name.split('-').next().and_then(|first| first.parse().ok());
        first.is_some_and(|first: u64| first <= run.0)
    }
}

/// What exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub number: u64,
    /// The run that writes.
    pub run: RunNumber,
    /// That of its claim, as hexadecimal digits.
    pub nonce: String,
    pub identity: Identity,
    /// How many workers the run has.
    pub num_slots: usize,
    /// How many workers a run had at most.
    pub slots_ever: usize,
    /// What every worker is known to have made durable. The logs of the run may say more.
    pub upper: Epoch,
    /// Not below any epoch that earlier runs have written, cut tails included.
    pub above: Epoch,
    pub segments: Vec<Segment>,
}

/// A nonce as text.
pub(super) fn hex(nonce: u128) -> String {
    format!("{nonce:032x}")
}

impl Manifest {
    fn encode(&self) -> Vec<u8> {
        let document = serde_json::to_string(self).expect("maps have names as keys");
        let mut text = format!("{TITLE}{VERSION}\n{document}\n");
        let crc = crc32c::crc32c(text.as_bytes());
        text.push_str(&format!("{CRC}{crc:08x}\n"));
        text.into_bytes()
    }

    /// # Errors
    ///
    /// [`ErrorKind::Store`] if these bytes are not what [`encode`](Self::encode) made, or were made by a newer version.
    fn decode(bytes: &[u8], path: &Path) -> Result<Manifest> {
        let damaged = |at: usize, why: &str| {
            Error::new(ErrorKind::Store, format!("{path:?} is damaged at byte {at}: {why}; {MEND}"))
        };
        let text = std::str::from_utf8(bytes).map_err(|error| damaged(error.valid_up_to(), "it is not text"))?;
        let version = text.strip_prefix(TITLE).and_then(|rest| rest.lines().next());
        let version: u32 = version
            .and_then(|version| version.parse().ok())
            .ok_or_else(|| damaged(0, "it does not begin as a manifest does"))?;
        if version > VERSION {
            return Err(newer(path, version));
        }
        let end = text.rfind(CRC).ok_or_else(|| damaged(text.len(), "its checksum is missing"))?;
        if text[end..] != format!("{CRC}{:08x}\n", crc32c::crc32c(&bytes[..end])) {
            return Err(damaged(end, "its checksum is not that of its contents"));
        }
        let document = text[..end].split_once('\n').map_or("", |(_, document)| document);
        serde_json::from_str(document)
            .map_err(|error| damaged(TITLE.len(), "its document does not parse").with_source(error))
    }
}

/// The refusal of a file of a later version.
pub(super) fn newer(path: &Path, version: u32) -> Error {
    let text = format!(
        "{path:?} has format {version}, and this version of syncline reads up to {VERSION}: go on with the version that wrote it"
    );
    Error::new(ErrorKind::Store, text)
}

/// The end of a run that a newer one has replaced.
pub(super) fn fenced(place: &Place, run: RunNumber, by: RunNumber) -> Error {
    let text = format!("run {} is fenced by run {} in folder {:?}", run.0, by.0, place.folder);
    Error::new(ErrorKind::Fenced, text)
}

/// The numbers of the manifests, ascending.
pub(super) fn list(place: &Place) -> Result<Vec<u64>> {
    place.numbers(&place.manifests())
}

/// The one that counts, if there is one.
pub(super) fn newest(place: &Place) -> Result<Option<Manifest>> {
    loop {
        let Some(number) = list(place)?.pop() else { return Ok(None) };
        // It may be removed as soon as there are many newer ones: then those count.
        if let Some(manifest) = read(place, number)? {
            return Ok(Some(manifest));
        }
    }
}

/// The one with this number; `None` if it is not there.
pub(super) fn read(place: &Place, number: u64) -> Result<Option<Manifest>> {
    let path = place.manifests().join(numbered(number));
    let Some(bytes) = place.read(&path)? else { return Ok(None) };
    let manifest = Manifest::decode(&bytes, &path)?;
    if manifest.number != number {
        let text = format!("{path:?} says that it is number {}; {MEND}", manifest.number);
        return Err(Error::new(ErrorKind::Store, text));
    }
    Ok(Some(manifest))
}

/// The error of whoever looks for a store where there is none.
pub(super) fn none(place: &Place) -> Error {
    let text = format!("there is no store in folder {:?}: no manifest", place.folder);
    Error::new(ErrorKind::NotFound, text)
}

/// Writes the next manifest, unless somebody else has written one of this number; whether it did. Durable after
/// [`settle`].
pub(super) fn create(place: &Place, manifest: &Manifest) -> Result<bool> {
    place.create_new(&place.manifests().join(numbered(manifest.number)), &manifest.encode())
}

/// Makes the newest manifest durable, and removes those that are much older.
pub(super) fn settle(place: &Place) -> Result<()> {
    let folder = place.manifests();
    place.sync(&folder)?;
    let numbers = list(place)?;
    let newest = numbers.last().copied().unwrap_or_default();
    for number in numbers.into_iter().take_while(|number| number + KEPT < newest) {
        place.remove(&folder.join(numbered(number)));
    }
    Ok(())
}

/// Changes what exists, as a step that others see whole or not at all. `change` is given the newest manifest, perhaps several times,
/// and says whether there is something to do to it. Returns the newest one, durable, in which there is nothing left to do.
///
/// # Errors
///
/// [`ErrorKind::Fenced`] if it is of a newer run; those of the disk, after which the change may have been made or not.
pub(super) fn change(
    place: &Place,
    claim: Claim,
    change: &mut dyn FnMut(&mut Manifest) -> Result<bool>,
) -> Result<Manifest> {
    loop {
        let mut manifest = own(place, claim)?;
        // Asked again after it was written: a number that was removed long ago may have been made again by one that slept.
        if !change(&mut manifest)? {
            settle(place)?;
            return Ok(manifest);
        }
        manifest.number += 1;
        create(place, &manifest)?;
    }
}

/// The newest manifest, which must be of this run.
pub(super) fn own(place: &Place, claim: Claim) -> Result<Manifest> {
    match newest(place)? {
        Some(manifest) if manifest.run == claim.run && manifest.nonce == hex(claim.nonce) => Ok(manifest),
        Some(manifest) if manifest.run >= claim.run => Err(fenced(place, claim.run, manifest.run)),
        _ => {
            let text = format!("run {} has no manifest any more in folder {:?}: {MEND}", claim.run.0, place.folder);
            Err(Error::new(ErrorKind::Store, text))
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::super::{Advice, LocalDisk};
    use super::*;
    use proptest::prelude::*;

    fn manifest(number: u64) -> Manifest {
        let segment = |slot, end| Segment { run: RunNumber(3), slot, sequence: 7, nonce: u64::MAX, end };
        Manifest {
            number,
            run: RunNumber(3),
            nonce: hex(5),
            identity: Identity { job: "a".into(), settings: vec![("key".into(), "ä\n".into())] },
            num_slots: 2,
            slots_ever: 4,
            upper: u64::MAX,
            above: 9,
            segments: vec![segment(Some(Slot(1)), None), segment(None, Some(End { bytes: 80, upper: 5 }))],
        }
    }

    #[test]
    fn a_manifest_comes_back() {
        let bytes = manifest(3).encode();
        assert_eq!(Manifest::decode(&bytes, Path::new("m")).unwrap(), manifest(3));
        assert_eq!(manifest(3).segments[0].name(), "0000000003-00001-000007");
        assert_eq!(manifest(3).segments[1].name(), "0000000003-base-000007");
    }

    #[test]
    fn a_newer_format_is_refused_by_name() {
        let text = String::from_utf8(manifest(3).encode()).unwrap().replace("manifest 1", "manifest 2");
        let error = Manifest::decode(text.as_bytes(), Path::new("m")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"m\" has format 2, and this version of syncline reads up to 1: go on with the version that wrote it"
        );
    }

    proptest! {
        #[test]
        fn any_other_bytes_are_refused(at: usize, bit in 0u32..8, cut: usize, junk in prop::collection::vec(any::<u8>(), 0..90)) {
            let bytes = manifest(3).encode();
            let mut flipped = bytes.clone();
            flipped[at % bytes.len()] ^= 1 << bit;
            for bytes in [&flipped[..], &bytes[..cut % bytes.len()], &junk] {
                let error = Manifest::decode(bytes, Path::new("m")).unwrap_err();
                prop_assert_eq!(error.kind(), ErrorKind::Store);
                prop_assert!(error.to_string().starts_with("\"m\" "));
            }
        }
    }

    #[test]
    fn a_number_that_was_removed_is_not_mistaken_for_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { disk: Arc::new(LocalDisk), folder: folder.path().to_owned(), advice: Advice::Normal };
        place.create().unwrap();
        assert!(create(&place, &manifest(1)).unwrap() && !create(&place, &manifest(1)).unwrap());
        let claim = Claim { run: RunNumber(3), nonce: 5 };
        let mut asked = 0;
        // While it sleeps between reading and writing, others write twelve manifests and remove the older ones.
        let changed = change(&place, claim, &mut |manifest| {
            asked += 1;
            if asked == 1 {
                for _ in 0..12 {
                    let mut next = newest(&place)?.unwrap();
                    next.number += 1;
                    assert!(create(&place, &next)?);
                    settle(&place)?;
                }
            }
            let missing = manifest.num_slots != 99;
            manifest.num_slots = 99;
            Ok(missing)
        });
        assert_eq!(changed.unwrap().number, 14);
        assert_eq!(asked, 3);
        assert_eq!(list(&place).unwrap().first(), Some(&6));
        let old = Claim { run: RunNumber(2), nonce: 5 };
        assert_eq!(
            own(&place, old).unwrap_err().to_string(),
            format!("run 2 is fenced by run 3 in folder {:?}", folder.path())
        );
    }
}
