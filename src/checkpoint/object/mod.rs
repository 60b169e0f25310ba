//! A disk in an object store.
//!
//! Objects are made whole, read in ranges and never changed, and making one fails if it is there. That is enough for a store of
//! checkpoints, whose files are made as new ones or appended to:
//!
//! ```text
//! NAME                              what the file was made with, its head
//! NAME.parts/00000000000000000056   what was appended at byte 56: an object for each sync, or for each 8 MiB of a large one
//! ```
//!
//! Every object is made under the condition that there is none of its name. So two writers can never both append at a place, and
//! nobody's bytes are ever replaced. A request whose answer was lost may have been carried out, and the one that repeats it is then
//! told that the object exists: what is there is read, and equal bytes are taken for ours. They are: claims and heads of segments
//! have a random number in them, manifests and frames follow from what only this writer did, and where two make the same object, it
//! says the same.
//!
//! A file ends where the next part is missing. Parts of a large append are sent at the same time, so after a crash later ones may be
//! there without an earlier one: they are not part of the file. The frame is torn, and cut off like one on any disk.
//!
//! # What is asked of the store
//!
//! That whoever reads or lists after a request was answered sees what it did (S3 and Azure do), and that `If-None-Match: *` is kept
//! to. The second is tried before anything else is made, by making an object that exists; a store that does make it is refused.
//!
//! There are no folders, no locks and no writes that are not durable, so [`create_folder`](Disk::create_folder),
//! [`sync_folder`](Disk::sync_folder) and [`sync_file`](Disk::sync_file) have nothing to do, and
//! [`open_append`](Disk::open_append) never finds a file in use: the latest claim wins, and the older run is fenced at its next append.
//!
//! # What a checkpoint costs
//!
//! Each worker makes one object (one for each 8 MiB), then lists the claims and reads its own, which takes three requests more: at the
//! default of one checkpoint a second and S3's list prices, 5 to 10 dollars a million, about a dollar a day for each worker whose
//! job always has something to do. Four round trips also are what a checkpoint takes, some 50 to 150 ms, and outputs come later by
//! them. A start reads segments in pieces of up to 1 MiB, 16 at a time, four times over: what counts, and what is to be kept.

mod client;
mod crypto;
mod file;
mod read;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Key;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode};
use tokio::runtime::{Builder, Runtime};

use super::disk::{Advice, Disk, DiskFile};
use file::ObjectFile;
use read::Files;

pub(super) use client::{Kind, open};

/// The end of the name under which the parts of a file are.
const PARTS: &str = ".parts";

/// So many requests are under way at a time, where many are made.
const AT_ONCE: usize = 16;

/// How often an object is tried to be made where the store says that it exists and then that it does not: S3 says so while another
/// request for it has not failed yet.
const TRIES: usize = 3;

/// A disk in an object store. Its paths are URLs.
pub(super) struct ObjectDisk {
    remote: Arc<Remote>,
    files: Mutex<Files>,
    /// Only looks, at files as they were when they were first read.
    still: bool,
}

/// The store and who talks to it.
struct Remote {
    store: Arc<dyn ObjectStore>,
    /// Taken at the end.
    runtime: Option<Runtime>,
    /// What paths begin with.
    url: PathBuf,
    /// What the names of objects begin with in its place.
    prefix: Key,
    /// The store is known to keep to conditions.
    tried: AtomicBool,
    sizes: Sizes,
}

/// How much is written and read at a time, in bytes.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// The largest object of an append. Larger ones take longer to be sent again after a failure, smaller ones are more requests.
    part: usize,
    /// What is read of an object: about what comes in the time in which a store answers at all.
    block: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes { part: 8 << 20, block: 1 << 20 }
    }
}

impl ObjectDisk {
    /// The disk whose paths begin with `url`, and whose objects have names that begin with `prefix`.
    ///
    /// # Errors
    ///
    /// That the thread cannot be started.
    fn new(store: Arc<dyn ObjectStore>, url: PathBuf, prefix: Key, sizes: Sizes) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("object store").enable_all().build()?;
        let tried = AtomicBool::new(false);
        let remote = Arc::new(Remote { store, runtime: Some(runtime), url, prefix, tried, sizes });
        Ok(ObjectDisk { remote, files: Mutex::default(), still: false })
    }

    /// The same one, to look at: nothing can be written, and what is appended to a file after it was first read is not there.
    pub fn still(&self) -> ObjectDisk {
        ObjectDisk { remote: Arc::clone(&self.remote), files: Mutex::default(), still: true }
    }

    /// The names of what is like a folder in a folder, sorted.
    pub fn folders(&self, folder: &Path) -> io::Result<Vec<String>> {
        let (_, prefixes) = self.remote.names(folder)?;
        Ok(prefixes.into_iter().filter(|name| !name.ends_with(PARTS)).collect())
    }

    fn refuse_if_still(&self) -> io::Result<()> {
        match self.still {
            true => Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the store is only looked at")),
            false => Ok(()),
        }
    }
}

impl Remote {
    /// Lets the runtime do something and waits for it; so it does not matter whether the caller is in a runtime of its own.
    fn wait<T: Send + 'static>(&self, task: impl Future<Output = io::Result<T>> + Send + 'static) -> io::Result<T> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        let ended = || io::Error::other("the thread of the object store has ended");
        let runtime = self.runtime.as_ref().ok_or_else(ended)?;
        runtime.spawn(async move {
            let _ = sender.send(task.await); // somebody waits
        });
        receiver.recv().map_err(|_| ended())?
    }

    /// The name of the object of a path.
    fn key(&self, path: &Path) -> io::Result<Key> {
        let outside = || io::Error::new(io::ErrorKind::InvalidInput, format!("it is not below {:?}", self.url));
        let below = path.strip_prefix(&self.url).map_err(|_| outside())?;
        let names = below.iter().map(OsStr::to_str).collect::<Option<Vec<_>>>().ok_or_else(outside)?;
        Ok(names.into_iter().fold(self.prefix.clone(), |key, name| key.join(name)))
    }

    /// The names of the objects and of the prefixes in a folder, each sorted.
    fn names(&self, folder: &Path) -> io::Result<(Vec<String>, Vec<String>)> {
        let (store, key) = (Arc::clone(&self.store), self.key(folder)?);
        let listed = self.wait(async move { store.list_with_delimiter(Some(&key)).await.map_err(failed) })?;
        let names = |keys: Vec<Key>| {
            let mut names: Vec<String> = keys.iter().filter_map(Key::filename).map(str::to_owned).collect();
            names.sort();
            names
        };
        Ok((names(listed.objects.into_iter().map(|object| object.location).collect()), names(listed.common_prefixes)))
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background(); // it may be dropped where nobody may wait
        }
    }
}

impl Disk for ObjectDisk {
    fn open_append(&self, path: &Path, _advice: Advice) -> io::Result<(Box<dyn DiskFile>, u64)> {
        self.refuse_if_still()?;
        let len = match self.read_len(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.create_new(path, b"")?;
                self.read_len(path)?
            }
            len => len?,
        };
        let file = ObjectFile::new(Arc::clone(&self.remote), parts_of(&self.remote.key(path)?), len);
        Ok((Box::new(file), len))
    }

    fn create_new(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        self.refuse_if_still()?;
        let (store, key) = (Arc::clone(&self.remote.store), self.remote.key(path)?);
        let tried = self.remote.tried.load(Ordering::SeqCst);
        let contents = Bytes::copy_from_slice(contents);
        self.remote.wait(async move {
            create(&*store, &key, &contents).await?;
            if tried { Ok(()) } else { try_condition(&*store, &key, &contents).await }
        })?;
        self.remote.tried.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn read_at(&self, path: &Path, position: u64, most: u64, _advice: Advice) -> io::Result<Bytes> {
        self.read_range(path, position..position.saturating_add(most)).map(Bytes::from)
    }

    /// An object is durable when its maker is told that it is there.
    fn sync_file(&self, _path: &Path) -> io::Result<()> {
        self.refuse_if_still()
    }

    /// Also the names of files of which only parts are left, so that they are seen and removed.
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let (mut names, prefixes) = self.remote.names(folder)?;
        names.extend(prefixes.iter().filter_map(|name| name.strip_suffix(PARTS)).map(str::to_owned));
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Removes the parts, then the head: as long as something is left the name is taken, so that no new file of this name gets the
    /// parts of the old one.
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.refuse_if_still()?;
        let (store, key) = (Arc::clone(&self.remote.store), self.remote.key(path)?);
        let removed = self.remote.wait(async move {
            let parts: Vec<Key> =
                store.list(Some(&parts_of(&key))).map_ok(|part| part.location).try_collect().await.map_err(failed)?;
            let some = !parts.is_empty();
            let mut removed = store.delete_stream(stream::iter(parts).map(Ok).boxed());
            while let Some(part) = removed.next().await {
                match part {
                    Err(Error::NotFound { .. }) => {}
                    part => drop(part.map_err(failed)?),
                }
            }
            match store.delete(&key).await {
                Err(Error::NotFound { .. }) if some => Ok(()),
                removed => removed.map_err(failed),
            }
        });
        self.forget(path);
        removed
    }

    /// The names of objects make folders.
    fn create_folder(&self, _folder: &Path) -> io::Result<()> {
        self.refuse_if_still()
    }

    /// An object is as durable as its name.
    fn sync_folder(&self, _folder: &Path) -> io::Result<()> {
        self.refuse_if_still()
    }
}

/// What the names of the parts of a file begin with.
fn parts_of(key: &Key) -> Key {
    Key::from_iter(key.parts().take(key.parts_count().saturating_sub(1)))
        .join(format!("{}{PARTS}", key.filename().unwrap_or_default()))
}

/// The name of the part that begins at a byte: as many digits for all, so that the order of names is that of parts.
fn part(parts: &Key, start: u64) -> Key {
    parts.clone().join(format!("{start:020}"))
}

/// Makes an object, unless there is one of this name with other contents: [`io::ErrorKind::AlreadyExists`].
async fn create(store: &dyn ObjectStore, key: &Key, contents: &Bytes) -> io::Result<()> {
    for _ in 0..TRIES {
        let put = store.put_opts(key, contents.clone().into(), PutMode::Create.into()).await;
        let error = match put {
            Ok(_) => return Ok(()),
            Err(error @ (Error::AlreadyExists { .. } | Error::Generic { .. })) => error,
            Err(error) => return Err(failed(error)),
        };
        let exists = matches!(error, Error::AlreadyExists { .. });
        match read_whole(store, key).await {
            Ok(found) if found == *contents => return Ok(()),
            Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, report(&error))),
            Err(Error::NotFound { .. }) if exists => {}
            Err(unread) if exists => return Err(failed(unread)),
            Err(_) => return Err(failed(error)),
        }
    }
    Err(io::Error::other("others are making the same object again and again, and none of them does"))
}

async fn read_whole(store: &dyn ObjectStore, key: &Key) -> object_store::Result<Bytes> {
    store.get(key).await?.bytes().await
}

/// Tries whether the store keeps to conditions, with an object that is there and its own contents, so that nothing is lost.
async fn try_condition(store: &dyn ObjectStore, key: &Key, contents: &Bytes) -> io::Result<()> {
    match store.put_opts(key, contents.clone().into(), PutMode::Create.into()).await {
        Err(Error::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(_) => {
            let text = "the store makes an object anew that is there already: it does not keep to If-None-Match, and two \
                        runs could not be kept apart. Use a store that does";
            Err(io::Error::new(io::ErrorKind::Unsupported, text))
        }
    }
}

/// An error in the words of disks, by which it is decided whether it may pass.
fn failed(error: Error) -> io::Error {
    let text = report(&error);
    // For lists the client does not say what kind of error it is, other than in words. A bucket that is not there is no empty folder.
    let refused = |status: &str| text.contains(&format!("status code: {status} "));
    let kind = match &error {
        Error::NotFound { .. } => io::ErrorKind::NotFound,
        Error::AlreadyExists { .. } => io::ErrorKind::AlreadyExists,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
        Error::NotSupported { .. } | Error::NotImplemented { .. } => io::ErrorKind::Unsupported,
        Error::InvalidPath { .. } | Error::UnknownConfigurationKey { .. } => io::ErrorKind::InvalidInput,
        _ if ["401", "403", "404", "405"].into_iter().any(refused) => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, text)
}

/// An error with its causes, each said once.
fn report(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
