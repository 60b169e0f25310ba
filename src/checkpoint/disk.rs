//! All input and output of files that must survive: one trait, so that tests can put a disk below it that tears, reorders and fails.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file that is appended to.
pub trait DiskFile: Send {
    /// Appends all of these bytes, or fails having appended some of them.
    ///
    /// [`io::ErrorKind::InvalidData`] if somebody else has changed, replaced or removed the file.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns when everything appended is durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Cuts the file to a length; the next append goes there.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
}

/// A file system as far as logs, manifests and the file sink need one.
pub trait Disk: Send + Sync {
    /// Opens a file to append to it, and makes it if it is not there. Returns its length too.
    ///
    /// Nobody else may have it open in this way, where the disk can see that: [`io::ErrorKind::WouldBlock`].
    fn open_append(&self, path: &Path) -> io::Result<(Box<dyn DiskFile>, u64)>;
    /// Makes a file with these contents, durable, unless there is one: then [`io::ErrorKind::AlreadyExists`]. Nobody ever sees a
    /// part of it, not even after a crash. Its name is durable after [`sync_folder`](Self::sync_folder).
    fn create_new(&self, path: &Path, contents: &[u8]) -> io::Result<()>;
    /// Reads a file from a position to its end.
    fn read_from(&self, path: &Path, position: u64) -> io::Result<Vec<u8>>;
    /// Reads a file from a position: `most` bytes, fewer only at its end.
    fn read_at(&self, path: &Path, position: u64, most: u64) -> io::Result<Vec<u8>>;
    /// Returns when what is in a file is durable, whoever has written it.
    fn sync_file(&self, path: &Path) -> io::Result<()>;
    /// The names of the files in a folder, sorted.
    fn list(&self, folder: &Path) -> io::Result<Vec<String>>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes a folder and those above it.
    fn create_folder(&self, folder: &Path) -> io::Result<()>;
    /// Returns when files made and removed in a folder are durably so.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// The file system of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalDisk;

struct LocalFile {
    file: File,
    path: PathBuf,
    /// The length that we have given it.
    len: u64,
}

impl LocalFile {
    /// Whether the file is still the one behind its name, and as long as we left it.
    fn check(&self) -> io::Result<()> {
        let (open, named) = (self.file.metadata()?, fs::metadata(&self.path));
        let same = named.is_ok_and(|named| (named.dev(), named.ino()) == (open.dev(), open.ino()));
        let problem = match (same, open.len() == self.len) {
            (true, true) => return Ok(()),
            (false, _) => "it was replaced or removed while it was written".to_owned(),
            (true, false) => {
                format!("it has {} bytes where {} were written: somebody else changed it", open.len(), self.len)
            }
        };
        Err(io::Error::new(io::ErrorKind::InvalidData, problem))
    }
}

/// The end of the names under which files are written before they get their own.
pub(crate) const DRAFT: &str = ".draft";

/// The name under which a file is written before it gets its own: no other call has it, on no machine.
fn draft(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:016x}{DRAFT}", RandomState::new().hash_one(std::process::id())));
    name.into()
}

impl DiskFile for LocalFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.check()?;
        let written = self.file.write_all(bytes);
        self.len = match written {
            Ok(()) => self.len + bytes.len() as u64,
            Err(_) => self.file.metadata()?.len(),
        };
        written
    }
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        self.len = len;
        Ok(())
    }
}

impl Disk for LocalDisk {
    fn open_append(&self, path: &Path) -> io::Result<(Box<dyn DiskFile>, u64)> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        let len = file.metadata()?.len();
        Ok((Box::new(LocalFile { file, path: path.to_owned(), len }), len))
    }
    fn create_new(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        let draft = draft(path);
        let written = (|| {
            let mut file = OpenOptions::new().create_new(true).write(true).open(&draft)?;
            file.write_all(contents)?;
            file.sync_all()?;
            fs::hard_link(&draft, path) // unlike a rename, it does not replace what is there
        })();
        // What is left of it is a name that nobody reads.
        let _ = fs::remove_file(&draft);
        written
    }
    fn read_from(&self, path: &Path, position: u64) -> io::Result<Vec<u8>> {
        self.read_at(path, position, u64::MAX)
    }
    fn read_at(&self, path: &Path, position: u64, most: u64) -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let rest = file.metadata()?.len().saturating_sub(position);
        file.seek(SeekFrom::Start(position))?;
        let mut bytes = Vec::with_capacity(usize::try_from(rest.min(most)).map_err(io::Error::other)?);
        file.take(most).read_to_end(&mut bytes).map(|_| bytes)
    }
    fn sync_file(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let mut names = vec![];
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                names.extend(entry.file_name().into_string());
            }
        }
        names.sort();
        Ok(names)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)
    }
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_truncates_and_lists() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, path) = (LocalDisk, folder.path().join("a"));
        let (mut file, len) = disk.open_append(&path).unwrap();
        assert_eq!(len, 0);
        file.append(b"hello world").unwrap();
        file.truncate(5).unwrap();
        file.append(b"!").unwrap();
        file.sync().unwrap();
        assert_eq!(disk.open_append(&path).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(disk.read_from(&path, 0).unwrap(), b"hello!");
        assert_eq!(disk.read_from(&path, 4).unwrap(), b"o!");
        fs::write(&path, b"somebody else").unwrap();
        assert_eq!(file.append(b"?").unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(file);
        assert_eq!(disk.open_append(&path).unwrap().1, 13);
        let error = disk.create_new(&path, b"").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(disk.list(folder.path()).unwrap(), ["a"]);
        disk.sync_folder(folder.path()).unwrap();
        disk.remove(&path).unwrap();
        assert!(disk.list(folder.path()).unwrap().is_empty());
    }
}
