//! All input and output of files that must survive: one trait, so that tests can put a disk below it that tears, reorders and fails.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

/// A file that is appended to.
pub trait DiskFile: Send {
    /// Appends all of these bytes, or fails having appended some of them.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns when everything appended is durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Cuts the file to a length; the next append goes there.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
}

/// A file system as far as logs, manifests and the file sink need one.
pub trait Disk: Send + Sync {
    /// Opens a file to append to it, and makes it if it is not there. Returns its length too.
    fn open_append(&self, path: &Path) -> io::Result<(Box<dyn DiskFile>, u64)>;
    /// Makes a file with these contents, durable, unless there is one: then [`io::ErrorKind::AlreadyExists`].
    fn create_new(&self, path: &Path, contents: &[u8]) -> io::Result<()>;
    /// Reads a whole file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
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

struct LocalFile(File);

impl DiskFile for LocalFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)?;
        self.0.seek(SeekFrom::Start(len)).map(drop)
    }
}

impl Disk for LocalDisk {
    fn open_append(&self, path: &Path) -> io::Result<(Box<dyn DiskFile>, u64)> {
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        let len = file.seek(SeekFrom::End(0))?;
        Ok((Box::new(LocalFile(file)), len))
    }
    fn create_new(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().create_new(true).write(true).open(path)?;
        file.write_all(contents)?;
        file.sync_all()
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
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
        assert_eq!(disk.open_append(&path).unwrap().1, 6);
        assert_eq!(disk.read(&path).unwrap(), b"hello!");
        let error = disk.create_new(&path, b"").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(disk.list(folder.path()).unwrap(), ["a"]);
        disk.sync_folder(folder.path()).unwrap();
        disk.remove(&path).unwrap();
        assert!(disk.list(folder.path()).unwrap().is_empty());
    }
}
