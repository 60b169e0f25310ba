//! Where a store is: its folders, and errors that name files.
//!
//! ```text
//! folder/claims/<run>              who may write; the one with the highest number. Its holder keeps it locked
//! folder/manifests/<number>        what exists; the one with the highest number
//! folder/segments/<run>-<slot>-<sequence>   frames, `base` in place of a slot after compaction
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::{Advice, Disk};
use crate::error::{Error, ErrorKind, Result};

/// A folder on a disk.
#[derive(Clone)]
pub(super) struct Place {
    pub disk: Arc<dyn Disk>,
    pub folder: PathBuf,
    /// How segments are read.
    pub advice: Advice,
}

impl Place {
    pub fn claims(&self) -> PathBuf {
        self.folder.join("claims")
    }

    pub fn manifests(&self) -> PathBuf {
        self.folder.join("manifests")
    }

    pub fn segments(&self) -> PathBuf {
        self.folder.join("segments")
    }

    /// Makes the folders.
    pub fn create(&self) -> Result<()> {
        for folder in [self.folder.clone(), self.claims(), self.manifests(), self.segments()] {
            self.disk.create_folder(&folder).map_err(|error| failed("be made", &folder, error))?;
        }
        self.sync(&self.folder)?;
        let parent = match self.folder.parent() {
            Some(parent) if parent == Path::new("") => Path::new("."),
            Some(parent) => parent,
            None => return Ok(()),
        };
        match self.disk.sync_folder(parent) {
            // Whoever may not read it was given a folder in it that is there already.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            synced => synced.map_err(|error| failed("be synced", parent, error)),
        }
    }

    /// Returns when the files of a folder are durably there.
    pub fn sync(&self, folder: &Path) -> Result<()> {
        self.disk.sync_folder(folder).map_err(|error| failed("be synced", folder, error))
    }

    /// The numbers that are names of files of a folder, ascending; nothing if there is no folder.
    pub fn numbers(&self, folder: &Path) -> Result<Vec<u64>> {
        let mut numbers: Vec<u64> = self.names(folder)?.iter().filter_map(|name| number(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The names of the files of a folder; nothing if there is no folder.
    pub fn names(&self, folder: &Path) -> Result<Vec<String>> {
        match self.disk.list(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![]),
            listed => listed.map_err(|error| failed("be listed", folder, error)),
        }
    }

    /// A small file; `None` if it is not there.
    pub fn read(&self, path: &Path) -> Result<Option<Bytes>> {
        match self.disk.read_from(path, 0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some).map_err(|error| failed("be read", path, error)),
        }
    }

    /// Makes a file unless it is there; whether it was made.
    pub fn create_new(&self, path: &Path, contents: &[u8]) -> Result<bool> {
        match self.disk.create_new(path, contents) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            made => made.map(|()| true).map_err(|error| failed("be made", path, error)),
        }
    }

    /// Removes a file that nothing refers to. If that fails it is only in the way, and is removed at the next start.
    pub fn remove(&self, path: &Path) {
        if let Err(error) = self.disk.remove(path) {
            tracing::debug!(?path, %error, "a file that is not needed could not be removed");
        }
    }
}

/// The name of a file that is a number: as many digits for all, so that people see them in order.
pub(super) fn numbered(number: u64) -> String {
    format!("{number:010}")
}

fn number(name: &str) -> Option<u64> {
    name.parse().ok().filter(|number| numbered(*number) == name)
}

/// An error of the disk. What may pass, such as a full disk, is retryable.
pub(super) fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    use io::ErrorKind::{InvalidData, InvalidInput, NotFound, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    let lasts = matches!(
        error.kind(),
        InvalidData | InvalidInput | NotFound | PermissionDenied | ReadOnlyFilesystem | Unsupported
    );
    let failed = Error::new(ErrorKind::Store, format!("{path:?} cannot {what}")).with_source(error);
    if lasts { failed } else { failed.retryable() }
}
