//! From what somebody has written, a folder or a URL, to where stores are.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "object-store")]
use super::object::{self, ObjectDisk};
use super::still::StillDisk;
use super::{Advice, Disk, FolderStore, LocalDisk, NewStore};
use crate::error::{Error, ErrorKind, Result};
use crate::sink::Slot;

/// The least time between two checkpoints in an object store, unless somebody says otherwise: each is made of requests, which take time
/// and money.
#[cfg(feature = "object-store")]
const OBJECT_STORE_EVERY: Duration = Duration::from_secs(1);

/// In an object store a frame counts as so many bytes at least: a small object takes as long to be read as one of this size.
#[cfg(feature = "object-store")]
const LEAST_FRAME: u64 = 64 << 10;

/// Where stores are: a folder of the machine, or what is like one in an object store.
#[derive(Clone)]
pub struct Location {
    folder: PathBuf,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Local,
    #[cfg(feature = "object-store")]
    Objects(Arc<ObjectDisk>),
}

/// Makes of a folder or a URL the place where stores are. Connects to nothing.
///
/// | written | means |
/// |---|---|
/// | `DIR`, `file:DIR`, `file:///DIR` | a folder of this machine, or one that all machines of the job have mounted |
/// | `s3://BUCKET/PATH` | S3 and what is like it; with the feature `s3` |
/// | `abfs://CONTAINER/PATH`, `abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH` (also `abfss:`, `az:`) | Azure's blobs; with the feature `azure` |
///
/// Where an object store is, and who asks, comes from the environment, as its other clients have it (`AWS_REGION`,
/// `AWS_ACCESS_KEY_ID`, `AZURE_STORAGE_ACCOUNT_NAME` and so on, or the identity of the machine), and from properties with the same
/// names in small letters.
///
/// # What an object store must be
///
/// Consistent: who reads or lists sees what was made before; and it must keep to `If-None-Match: *`, by which of two that make the
/// same object one fails. S3 and Azure are and do. One that does not is refused at the first claim. Rights to list, read, make and
/// delete objects are needed.
///
/// There is no lock that shows that a run lives: the latest claim wins, and an older run that is alive ends with "fenced by run N" at
/// its next checkpoint, before it publishes anything more.
///
/// # What an object store costs
///
/// For each checkpoint every worker makes an object (one for each 8 MiB), lists the claims and reads its own: four requests, one after
/// the other, some 50 to 150 ms together. At one checkpoint a second and S3's list prices that is about a dollar a day for each worker
/// of a job that always has something to do.
///
/// # Errors
///
/// [`ErrorKind::Config`] with the fix: a scheme that is not known or that this build does not have, a property that is not known.
pub fn open(url: &str, properties: &[(String, String)]) -> Result<Location> {
    let refused = |what: String| Err(Error::new(ErrorKind::Config, format!("store {:?} {what}", redact(url))));
    let local = |folder: &str| match (folder, properties) {
        ("", _) => refused("names no folder".to_owned()),
        (folder, []) => Ok(Location::from(PathBuf::from(folder))),
        (_, [(name, _), ..]) => refused(format!("is a folder, which has no properties: remove {name:?}")),
    };
    if let Some(rest) = url.strip_prefix("file:") {
        return match rest.strip_prefix("//") {
            None => local(rest),
            Some(path) => match path.strip_prefix("localhost").unwrap_or(path) {
                path if path.starts_with('/') => local(path),
                _ => refused("names a host: write file:DIR or file:///DIR".to_owned()),
            },
        };
    }
    let Some((scheme, rest)) = url.split_once("://") else { return local(url) };
    let url = url.trim_end_matches('/');
    if rest.contains(['?', '#']) {
        return refused("has more than a bucket and a path: leave out what begins with ? or #".to_owned());
    }
    let bucket = rest.split('/').next().unwrap_or_default();
    if bucket.is_empty() {
        return refused("names no bucket".to_owned());
    }
    if bucket.contains(':') {
        return refused(
            "has a port or a password before its path: both are properties, or come from the environment".to_owned(),
        );
    }
    match scheme {
        #[cfg(feature = "s3")]
        "s3" => Location::objects(object::Kind::S3, url, properties),
        #[cfg(feature = "azure")]
        "abfs" | "abfss" | "az" => Location::objects(object::Kind::Azure, url, properties),
        #[cfg(not(feature = "s3"))]
        "s3" => not_built(url, "s3"),
        #[cfg(not(feature = "azure"))]
        "abfs" | "abfss" | "az" => not_built(url, "azure"),
        _ => refused(format!(
            "has an unknown scheme {scheme:?} (known are a folder, file:DIR, s3://BUCKET/PATH, abfs://CONTAINER/PATH and \
             abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH)"
        )),
    }
}

#[cfg(not(all(feature = "s3", feature = "azure")))]
fn not_built(url: &str, feature: &str) -> Result<Location> {
    let text = format!(
        "store {url:?}: this build has no client for it: build it with `cargo build --release --features {feature}`"
    );
    Err(Error::new(ErrorKind::Config, text))
}

/// The URL without a password.
fn redact(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(colon), Some(at)) if url[colon + 3..at.max(colon + 3)].contains(':') => {
            format!("{}***{}", &url[..colon + 3], &url[at..])
        }
        _ => url.to_owned(),
    }
}

impl From<PathBuf> for Location {
    /// A folder of this machine.
    fn from(folder: PathBuf) -> Self {
        Location { folder, kind: Kind::Local }
    }
}

impl Location {
    #[cfg(feature = "object-store")]
    fn objects(kind: object::Kind, url: &str, properties: &[(String, String)]) -> Result<Location> {
        let disk = object::open(kind, url, properties)?;
        Ok(Location { folder: url.into(), kind: Kind::Objects(Arc::new(disk)) })
    }

    /// The folder, or the URL.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The place of a name in this one.
    #[must_use]
    pub fn join(&self, name: &str) -> Location {
        Location { folder: self.folder.join(name), kind: self.kind.clone() }
    }

    /// What reads and writes there.
    pub fn disk(&self) -> Arc<dyn Disk> {
        match &self.kind {
            Kind::Local => Arc::new(LocalDisk),
            #[cfg(feature = "object-store")]
            Kind::Objects(disk) => Arc::clone(disk) as Arc<dyn Disk>,
        }
    }

    /// The store of a worker.
    pub fn store(&self, slot: Slot) -> FolderStore {
        let store = FolderStore::new(self.folder.clone(), self.disk(), slot);
        match &self.kind {
            Kind::Local => store,
            #[cfg(feature = "object-store")]
            Kind::Objects(_) => store.with_least_frame_bytes(LEAST_FRAME),
        }
    }

    /// The stores of all workers, for [`Job::store`](crate::Job::store).
    pub fn new_store(&self) -> NewStore {
        let location = self.clone();
        Arc::new(move |slot| Box::new(location.store(slot)))
    }

    /// What [`Job::checkpoint_every`](crate::Job::checkpoint_every) should be where nobody has said: as fast as the disk allows in a
    /// folder, a second in an object store.
    pub fn checkpoint_every(&self) -> Duration {
        match &self.kind {
            Kind::Local => Duration::ZERO,
            #[cfg(feature = "object-store")]
            Kind::Objects(_) => OBJECT_STORE_EVERY,
        }
    }

    /// A disk to look with beside a job: nothing can be written, and files do not grow any more once they were looked at.
    pub(super) fn still(&self) -> Arc<dyn Disk> {
        match &self.kind {
            Kind::Local => Arc::new(StillDisk::default()),
            #[cfg(feature = "object-store")]
            Kind::Objects(disk) => Arc::new(disk.still()),
        }
    }

    /// Whether a store is here.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`] if that cannot be seen.
    pub(crate) fn holds_store(&self) -> Result<bool> {
        match &self.kind {
            Kind::Local => Ok(self.folder.join("manifests").is_dir()),
            #[cfg(feature = "object-store")]
            Kind::Objects(_) => {
                let place =
                    super::place::Place { disk: self.disk(), folder: self.folder.clone(), advice: Advice::Normal };
                Ok(!place.names(&place.manifests())?.is_empty())
            }
        }
    }

    /// The folders in this one, sorted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if it cannot be looked at.
    pub(crate) fn folders(&self) -> Result<Vec<Location>> {
        let listed = match &self.kind {
            Kind::Local => std::fs::read_dir(&self.folder).map(|entries| {
                let entries = entries.filter_map(|entry| entry.ok()).filter(|entry| entry.path().is_dir());
                let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
                names.sort();
                names
            }),
            #[cfg(feature = "object-store")]
            Kind::Objects(disk) => disk.folders(&self.folder),
        };
        let names = listed.map_err(|error| {
            let text = format!(
                "folder {:?} cannot be looked at: give the --backendFolder of a job, or a folder in it",
                self.folder
            );
            Error::new(ErrorKind::NotFound, text).with_source(error)
        })?;
        Ok(names.iter().map(|name| self.join(name)).collect())
    }
}

impl std::fmt::Debug for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Location").field(&self.folder).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str, properties: &[(&str, &str)]) -> String {
        let properties: Vec<_> = properties.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let error = open(url, &properties).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        error.to_string()
    }

    #[test]
    fn folders_are_folders() {
        for (url, folder) in
            [("a/b", "a/b"), ("/a", "/a"), ("file:a", "a"), ("file:///a/b", "/a/b"), ("file:/a", "/a"), ("a:b", "a:b")]
        {
            let location = open(url, &[]).unwrap();
            assert_eq!((location.folder(), location.checkpoint_every()), (Path::new(folder), Duration::ZERO), "{url}");
        }
        assert_eq!(open("a", &[]).unwrap().join("b").folder(), Path::new("a/b"));
    }

    #[test]
    fn what_is_no_place_is_refused_with_the_fix() {
        assert_eq!(refused("file:", &[]), "store \"file:\" names no folder");
        assert_eq!(refused("file://h/a", &[]), "store \"file://h/a\" names a host: write file:DIR or file:///DIR");
        assert_eq!(refused("a", &[("x", "y")]), "store \"a\" is a folder, which has no properties: remove \"x\"");
        assert!(refused("gs://b/a", &[]).starts_with("store \"gs://b/a\" has an unknown scheme \"gs\" (known are "));
        assert_eq!(refused("s3:///a", &[]), "store \"s3:///a\" names no bucket");
        let text = refused("s3://me:secret@b/a", &[]);
        assert!(text.starts_with("store \"s3://***@b/a\" has a port or a password") && !text.contains("secret"));
        assert!(refused("s3://b/a?x", &[]).contains("leave out what begins with ? or #"));
        #[cfg(not(feature = "s3"))]
        assert!(refused("s3://b/a", &[]).ends_with("`cargo build --release --features s3`"));
        #[cfg(not(feature = "azure"))]
        assert!(refused("abfs://b/a", &[]).ends_with("`cargo build --release --features azure`"));
    }

    #[cfg(feature = "s3")]
    #[test]
    fn properties_of_s3_are_checked() {
        let location = open("s3://bucket/a/b//", &[("aws_region".into(), "eu-west-1".into())]).unwrap();
        assert_eq!(location.join("c").folder(), Path::new("s3://bucket/a/b/c"));
        assert_eq!(location.checkpoint_every(), Duration::from_secs(1));
        assert_eq!(
            refused("s3://b", &[("aws_regoin", "secret"), ("bucket", "secret")]),
            "store \"s3://b\": s3 stores have no property \"aws_regoin\": did you mean aws_region?\n\
             store \"s3://b\": property \"bucket\" cannot be set: the URL or syncline does"
        );
    }

    #[cfg(feature = "azure")]
    #[test]
    fn properties_of_azure_are_checked() {
        let key = ("azure_storage_account_key", "a2V5");
        let text = refused("abfs://c/a", &[key, ("azure_storage_acount_name", "secret")]);
        assert!(text.ends_with("did you mean azure_storage_account_name?") && !text.contains("secret"), "{text}");
        let properties = [(key.0.into(), key.1.into())];
        let location = open("abfss://c@account.dfs.core.windows.net/a", &properties).unwrap();
        assert_eq!(location.folder(), Path::new("abfss://c@account.dfs.core.windows.net/a"));
    }
}
