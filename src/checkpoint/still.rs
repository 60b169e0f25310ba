//! Looking at a folder beside the job that writes to it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::disk::{Advice, Disk, DiskFile, LocalDisk};
use super::inspect::{self, Inspection};
use super::location::Location;
use super::manifest;
use super::place::Place;
use crate::error::{Error, ErrorKind, Result};

/// How often a folder is looked at anew because it was changed meanwhile. A job changes its manifest every few seconds at most, so
/// more than once is rare.
const TRIES: usize = 5;

/// The file system of the machine, to read from only, and each file as it was when it was first read: what is appended later is not
/// there, and what is removed later still is.
#[derive(Debug, Default)]
pub(super) struct StillDisk {
    files: Mutex<HashMap<PathBuf, (Arc<File>, u64)>>,
}

impl StillDisk {
    fn file(&self, path: &Path) -> io::Result<(Arc<File>, u64)> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = files.get(path) {
            return Ok(known.clone());
        }
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let opened = (Arc::new(file), length);
        files.insert(path.to_owned(), opened.clone());
        Ok(opened)
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the folder is only looked at"))
}

impl Disk for StillDisk {
    fn open_append(&self, _path: &Path, _advice: Advice) -> io::Result<(Box<dyn DiskFile>, u64)> {
        refused()
    }
    fn create_new(&self, _path: &Path, _contents: &[u8]) -> io::Result<()> {
        refused()
    }
    fn read_at(&self, path: &Path, position: u64, most: u64, _advice: Advice) -> io::Result<Bytes> {
        let (file, length) = self.file(path)?;
        let wanted = length.saturating_sub(position).min(most);
        let mut bytes = vec![0; usize::try_from(wanted).map_err(io::Error::other)?];
        file.read_exact_at(&mut bytes, position)?;
        Ok(bytes.into())
    }
    fn sync_file(&self, _path: &Path) -> io::Result<()> {
        refused()
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        LocalDisk.list(folder)
    }
    fn remove(&self, _path: &Path) -> io::Result<()> {
        refused()
    }
    fn create_folder(&self, _folder: &Path) -> io::Result<()> {
        refused()
    }
    fn sync_folder(&self, _folder: &Path) -> io::Result<()> {
        refused()
    }
}

/// Looks at a store that a job may be writing to, as [`inspect`](super::inspect()) does. What was seen stays as it was, however long
/// it is read: appends that come later change nothing of it; nor do compactions in a folder, of which every file is held open. An
/// object store cannot hold what is removed: there a file that a compaction has removed is missing, and a second look finds another.
///
/// # Errors
///
/// Those of [`inspect`](super::inspect()).
pub fn inspect_beside(location: &Location) -> Result<Inspection> {
    settled(location, &mut |place| inspect::inspect(place.folder, place.disk), &Result::is_ok)?
}

/// Calls `look` with the folder as it is, all files of its newest manifest held; again where what it saw was not `fine` and the
/// manifest was replaced meanwhile.
pub(super) fn settled<T>(
    location: &Location,
    look: &mut dyn FnMut(Place) -> T,
    fine: &dyn Fn(&T) -> bool,
) -> Result<T> {
    let mut tries = 0;
    loop {
        tries += 1;
        let place = Place { disk: location.still(), folder: location.folder().to_owned(), advice: Advice::Normal };
        let before = manifest::list(&place)?.pop();
        hold(&place)?;
        let looked = look(place.clone());
        if tries == TRIES || fine(&looked) || manifest::list(&place)?.pop() == before {
            return Ok(looked);
        }
    }
}

/// Opens what the newest manifest lists. What is missing, or not to be read, is for `look` to say.
fn hold(place: &Place) -> Result<()> {
    let Ok(Some(manifest)) = manifest::newest(place) else { return Ok(()) };
    for segment in &manifest.segments {
        let path = place.segments().join(segment.name());
        match place.disk.read_at(&path, 0, 0, Advice::Normal) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
                let text = format!(
                    "{path:?} cannot be opened beside the other {} segments: allow more open files (ulimit -n)",
                    manifest.segments.len()
                );
                return Err(Error::new(ErrorKind::Store, text).with_source(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether the process that has claimed a folder is alive, without touching its lock; `None` if that cannot be known from here.
pub(super) fn is_alive(claim: &Path, process: u32, host: &str) -> Option<bool> {
    let here = rustix::system::uname();
    if here.nodename().to_string_lossy() != host || !Path::new("/proc/self").exists() {
        return None;
    }
    if !Path::new("/proc").join(process.to_string()).exists() {
        return Some(false);
    }
    // Another process may have got the number since: the one that claimed has the lock. Devices are not compared, because some file
    // systems have another one here than there.
    let inode = fs::metadata(claim).ok()?.ino().to_string();
    let is_it = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], [_, "FLOCK", _, _, holder, file, ..]
            if holder == process.to_string() && file.rsplit(':').next() == Some(&inode))
    };
    fs::read_to_string("/proc/locks").ok()?.lines().any(is_it).then_some(true)
}

#[cfg(test)]
mod tests {
    use super::super::{Begin, FolderStore, Store};
    use super::*;
    use crate::sink::Slot;

    #[test]
    fn files_stay_as_they_were_and_nothing_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "first").unwrap();
        let disk = StillDisk::default();
        assert_eq!(disk.read_at(&path, 1, 2, Advice::Normal).unwrap()[..], *b"ir");
        fs::write(&path, "first and more").unwrap();
        assert_eq!(disk.read_from(&path, 0).unwrap()[..], *b"first");
        fs::remove_file(&path).unwrap();
        assert_eq!(disk.read_from(&path, 2).unwrap()[..], *b"rst");
        assert!(disk.read_from(&path, 9).unwrap().is_empty());
        assert!(
            disk.open_append(&path, Advice::Normal).is_err()
                && disk.create_new(&path, b"").is_err()
                && disk.remove(&path).is_err()
        );
        assert!(
            disk.create_folder(&path).is_err() && disk.sync_folder(&path).is_err() && disk.sync_file(&path).is_err()
        );
        assert!(disk.list(folder.path()).unwrap().is_empty());
    }

    #[test]
    fn a_holder_is_seen_by_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claim");
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let lock = LocalDisk.open_append(&path, Advice::Normal).unwrap();
        assert_eq!(is_alive(&path, std::process::id(), &host), Some(true));
        assert_eq!(is_alive(&path, std::process::id(), "elsewhere"), None);
        assert_eq!(is_alive(&path, u32::MAX, &host), Some(false));
        drop(lock);
        assert_eq!(is_alive(&path, std::process::id(), &host), None);
    }

    #[test]
    fn a_look_is_repeated_only_where_the_manifest_was_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let begin = || {
            let mut store = FolderStore::new(folder.path().into(), Arc::new(LocalDisk), Slot(0));
            store.claim(false).unwrap();
            store.begin(&Begin { num_slots: 1, ..Begin::default() }).unwrap();
        };
        begin();
        let looks = |replaced: usize| {
            let mut looks = 0;
            let mut look = |_: Place| {
                looks += 1;
                if looks <= replaced {
                    begin();
                }
            };
            settled(&folder.path().to_owned().into(), &mut look, &|()| false).unwrap();
            looks
        };
        assert_eq!([looks(0), looks(1), looks(3), looks(99)], [1, 2, 4, TRIES]);
        assert_eq!(inspect_beside(&folder.path().to_owned().into()).unwrap().run.0, 9 + 1);
    }
}
