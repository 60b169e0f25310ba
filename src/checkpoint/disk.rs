//! All input and output of files that must survive: one trait, so that tests can put a disk below it that tears, reorders and fails.

use std::fs::{self, File, Metadata, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;

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

/// What becomes of the bytes of a file once they are written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// They are read again soon.
    Normal,
    /// Mostly they are not read again: the system need not keep them in memory too, which costs more than the device does.
    NoReuse,
}

/// What the bytes of a file that go to the device without the memory of the system are aligned to.
pub const PAGE: usize = 4 << 10;

/// A file system as far as logs, manifests and the file sink need one.
pub trait Disk: Send + Sync {
    /// Opens a file to append to it, and makes it if it is not there. Returns its length too.
    ///
    /// Nobody else may have it open in this way, where the disk can see that: [`io::ErrorKind::WouldBlock`].
    fn open_append(&self, path: &Path, advice: Advice) -> io::Result<(Box<dyn DiskFile>, u64)>;
    /// Makes a file with these contents, durable, unless there is one: then [`io::ErrorKind::AlreadyExists`]. Nobody ever sees a
    /// part of it, not even after a crash. Its name is durable after [`sync_folder`](Self::sync_folder).
    fn create_new(&self, path: &Path, contents: &[u8]) -> io::Result<()>;
    /// Reads a file from a position: `most` bytes, fewer only at its end.
    fn read_at(&self, path: &Path, position: u64, most: u64, advice: Advice) -> io::Result<Bytes>;
    /// Reads a file from a position to its end.
    fn read_from(&self, path: &Path, position: u64) -> io::Result<Bytes> {
        self.read_at(path, position, u64::MAX, Advice::Normal)
    }
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
///
/// With [`Advice::NoReuse`], much that is read comes from the device directly (`O_DIRECT`), where the file system can do that; and whole
/// pages of what is appended go there, if they stand in memory as in the file: at an address and a position of one remainder modulo
/// [`PAGE`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalDisk;

struct LocalFile {
    file: File,
    /// The same file, past the memory of the system.
    direct: Option<File>,
    path: PathBuf,
    /// The length that we have given it.
    len: u64,
}

/// Fewer bytes are not worth a way of their own to the device.
const DIRECT: usize = 16 * PAGE;

impl LocalFile {
    /// Whether the file is still the one behind its name, and as long as we left it.
    fn check(&self) -> io::Result<()> {
        let (open, named) = (self.file.metadata()?, fs::metadata(&self.path));
        let problem = match (named.is_ok_and(|named| is_same(&named, &open)), open.len() == self.len) {
            (true, true) => return Ok(()),
            (false, _) => "it was replaced or removed while it was written".to_owned(),
            (true, false) => {
                format!("it has {} bytes where {} were written: somebody else changed it", open.len(), self.len)
            }
        };
        Err(io::Error::new(io::ErrorKind::InvalidData, problem))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let to_page = (self.len as usize).wrapping_neg() % PAGE;
        let aligned = bytes.as_ptr().addr().wrapping_neg() % PAGE == to_page;
        let (Some(direct), true) = (&self.direct, aligned && bytes.len() >= DIRECT) else {
            return self.file.write_all(bytes);
        };
        let (before, pages) = bytes.split_at(to_page);
        let (pages, after) = pages.split_at(pages.len() & !(PAGE - 1));
        self.file.write_all(before)?;
        let start = self.len + before.len() as u64;
        match direct.write_all_at(pages, start) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && self.file.metadata()?.len() == start => {
                self.direct = None; // larger pages, or a file system that only says that it can
                self.file.write_all(pages)?;
            }
            written => written?,
        }
        self.file.write_all(after)
    }
}

/// Opens a file past the memory of the system. [`io::ErrorKind::InvalidInput`] if the file system cannot do that.
#[cfg(target_os = "linux")]
fn open_direct(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open(path)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_path: &Path, _options: &mut OpenOptions) -> io::Result<File> {
    Err(io::ErrorKind::InvalidInput.into())
}

fn read_direct(path: &Path, position: u64, most: u64) -> io::Result<Bytes> {
    let file = open_direct(path, OpenOptions::new().read(true))?;
    let wanted = file.metadata()?.len().saturating_sub(position).min(most);
    let before = position as usize % PAGE;
    let length = before + usize::try_from(wanted).map_err(io::Error::other)?;
    let mut memory = vec![0; length + 2 * PAGE]; // aligned, and up to the end of a page
    let from = memory.as_ptr().addr().wrapping_neg() % PAGE;
    let pages = &mut memory[from..from + length.next_multiple_of(PAGE)];
    let mut read = 0;
    while read < length {
        match file.read_at(&mut pages[read..], position - before as u64 + read as u64) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) => break,
            more => read += more?,
        }
    }
    Ok(Bytes::from(memory).slice(from + before.min(read)..from + length.min(read)))
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
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
        let written = self.write(bytes);
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
    fn open_append(&self, path: &Path, advice: Advice) -> io::Result<(Box<dyn DiskFile>, u64)> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        let metadata = file.metadata()?;
        let direct = (advice == Advice::NoReuse).then(|| open_direct(path, OpenOptions::new().write(true)).ok());
        let direct =
            direct.flatten().filter(|direct| direct.metadata().is_ok_and(|direct| is_same(&direct, &metadata)));
        let len = metadata.len();
        Ok((Box::new(LocalFile { file, direct, path: path.to_owned(), len }), len))
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
    fn read_at(&self, path: &Path, position: u64, most: u64, advice: Advice) -> io::Result<Bytes> {
        if advice == Advice::NoReuse && most >= DIRECT as u64 {
            match read_direct(path, position, most) {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {} // see `LocalFile::write`
                read => return read,
            }
        }
        let mut file = File::open(path)?;
        let rest = file.metadata()?.len().saturating_sub(position);
        file.seek(SeekFrom::Start(position))?;
        let mut bytes = Vec::with_capacity(usize::try_from(rest.min(most)).map_err(io::Error::other)?);
        file.take(most).read_to_end(&mut bytes).map(|_| bytes.into())
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
        let (mut file, len) = disk.open_append(&path, Advice::Normal).unwrap();
        assert_eq!(len, 0);
        file.append(b"hello world").unwrap();
        file.truncate(5).unwrap();
        file.append(b"!").unwrap();
        file.sync().unwrap();
        assert_eq!(disk.open_append(&path, Advice::Normal).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(disk.read_from(&path, 0).unwrap()[..], *b"hello!");
        assert_eq!(disk.read_from(&path, 4).unwrap()[..], *b"o!");
        fs::write(&path, b"somebody else").unwrap();
        assert_eq!(file.append(b"?").unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(file);
        assert_eq!(disk.open_append(&path, Advice::Normal).unwrap().1, 13);
        let error = disk.create_new(&path, b"").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(disk.list(folder.path()).unwrap(), ["a"]);
        disk.sync_folder(folder.path()).unwrap();
        disk.remove(&path).unwrap();
        assert!(disk.list(folder.path()).unwrap().is_empty());
    }

    /// Bytes in memory whose address has a remainder of so much, modulo a page.
    fn placed(length: usize, remainder: usize, number: usize) -> (Vec<u8>, usize) {
        let memory: Vec<u8> = (0..length + 2 * PAGE).map(|at| (at * 31 + number) as u8).collect();
        let from = (memory.as_ptr().addr().wrapping_neg() + remainder) % PAGE;
        (memory, from)
    }

    #[test]
    fn what_goes_past_the_memory_of_the_system_is_read_through_it() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, path) = (LocalDisk, folder.path().join("a"));
        let (mut file, _) = disk.open_append(&path, Advice::NoReuse).unwrap();
        let mut expected = vec![];
        for number in 0..60usize {
            let length = [1, PAGE - 1, DIRECT, DIRECT + PAGE + 1, 20 * PAGE, 5][number % 6] + number;
            let aligned = number % 3 != 0;
            let (memory, from) = placed(length, expected.len() % PAGE + usize::from(!aligned), number);
            let piece = &memory[from..from + length];
            file.append(piece).unwrap();
            expected.extend_from_slice(piece);
            if number % 4 == 0 {
                file.sync().unwrap();
            }
            let from = expected.len().saturating_sub(length + 10);
            assert_eq!(disk.read_from(&path, from as u64).unwrap(), expected[from..], "after piece {number}");
            for most in [1, DIRECT, DIRECT + 1, length, expected.len()] {
                let read = disk.read_at(&path, from as u64, most as u64, Advice::NoReuse).unwrap();
                assert_eq!(
                    read,
                    expected[from..][..most.min(length.min(expected.len()) + 10).min(expected.len() - from)]
                );
            }
        }
        assert!(fs::read(&path).unwrap() == expected);
    }
}
