//! For tests: a disk that forgets, tears and fails as its seed says.
//!
//! What was not synced may be gone after a crash of the machine, as a whole or from any byte on, or be zeros in the middle; what was
//! cut off may be there again; each name that was made or removed may be as before, whatever became of others. What is in memory
//! alone is seen by all until then, also after a crash of a process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use super::disk::{Advice, Disk, DiskFile};

/// Numbers that look random and that the seed decides (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn one_in(&mut self, number: u64) -> bool {
        self.below(number) == 0
    }
}

#[derive(Debug, Default)]
struct Inode {
    data: Vec<u8>,
    /// So much of it survives.
    synced: usize,
    /// What it was, and how much of that survived, before something was cut off since the last sync: that may be undone.
    uncut: Option<(Vec<u8>, usize)>,
    is_open: bool,
}

impl Inode {
    fn sync(&mut self) {
        self.synced = self.data.len();
        self.uncut = None;
    }
}

#[derive(Debug)]
struct State {
    random: Random,
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    /// The names that survive.
    synced: BTreeMap<String, usize>,
    /// One in so many calls fails; 0 is none.
    fault: u64,
    /// The call at which everything ends.
    crash_after: Option<u64>,
    crashed: bool,
    /// Grows with each crash: files opened before are dead.
    life: u64,
    /// For the tests of the tests: syncs are lies.
    lies: bool,
}

/// How much of a call is done although it fails.
enum Part {
    None,
    Some,
    All,
}

/// The disk. Clones are the same one.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

struct SimFile {
    disk: SimDisk,
    inode: usize,
    life: u64,
}

/// Paths as text: they are compared often.
fn key(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// The names in a folder.
fn inside<'a>(names: &'a BTreeMap<String, usize>, folder: &Path) -> impl Iterator<Item = (&'a str, usize)> + use<'a> {
    let folder = key(folder) + "/";
    let from = names.range(folder.clone()..);
    from.map_while(move |(path, inode)| Some((path.strip_prefix(&folder)?, *inode)))
        .filter(|(name, _)| !name.contains('/'))
}

fn dead() -> io::Error {
    io::Error::other("the machine is down")
}

impl State {
    /// Whether this call is to fail, and how.
    fn call(&mut self) -> Option<(Part, io::Error)> {
        if self.crashed {
            return Some((Part::None, dead()));
        }
        let part = match self.random.below(3) {
            0 => Part::None,
            1 => Part::Some,
            _ => Part::All,
        };
        if let Some(left) = &mut self.crash_after {
            if *left == 0 {
                self.crashed = true;
                return Some((part, dead()));
            }
            *left -= 1;
        }
        if self.fault > 0 && self.random.one_in(self.fault) {
            let error = match self.random.one_in(2) {
                true => io::ErrorKind::StorageFull.into(),
                false => io::Error::other("input/output error"),
            };
            return Some((part, error));
        }
        None
    }

    fn inode(&self, path: &Path) -> io::Result<usize> {
        self.names.get(&key(path)).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn create(&mut self, path: &Path, data: Vec<u8>) -> usize {
        self.inodes.push(Inode { synced: data.len(), data, ..Inode::default() });
        self.names.insert(key(path), self.inodes.len() - 1);
        self.inodes.len() - 1
    }

    fn lose(&mut self) {
        for inode in &mut self.inodes {
            if let Some((data, synced)) = inode.uncut.take().filter(|_| self.random.one_in(2)) {
                (inode.data, inode.synced) = (data, synced);
            }
            let unsynced = inode.data.len() - inode.synced;
            let kept = self.random.below(unsynced as u64 + 1) as usize;
            inode.data.truncate(inode.synced + kept);
            if kept > 0 && self.random.one_in(3) {
                let from = inode.synced + self.random.below(kept as u64) as usize;
                let to = from + self.random.below((inode.data.len() - from) as u64 + 1) as usize;
                inode.data[from..to].fill(0);
            }
            inode.sync();
        }
        let paths: BTreeSet<_> = self.names.keys().chain(self.synced.keys()).cloned().collect();
        for path in paths {
            let (now, before) = (self.names.get(&path).copied(), self.synced.get(&path).copied());
            if now != before && self.random.one_in(2) {
                match before {
                    Some(inode) => self.names.insert(path, inode),
                    None => self.names.remove(&path),
                };
            }
        }
        self.synced = self.names.clone();
    }
}

impl SimDisk {
    pub fn new(seed: u64) -> Self {
        SimDisk(Arc::new(Mutex::new(State {
            random: Random(seed),
            inodes: vec![],
            names: BTreeMap::new(),
            synced: BTreeMap::new(),
            fault: 0,
            crash_after: None,
            crashed: false,
            life: 0,
            lies: false,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// From here on one in `fault` calls fails (0: none), and after `crash_after` calls the disk is gone until the next restart.
    pub fn plan(&self, fault: u64, crash_after: Option<u64>) {
        let mut state = self.lock();
        (state.fault, state.crash_after) = (fault, crash_after);
    }

    /// Says that all is durable though nothing is.
    pub fn lie(&self) {
        self.lock().lies = true;
    }

    pub fn has_crashed(&self) -> bool {
        self.lock().crashed
    }

    /// All processes are gone. If the machine was, so is what was not synced.
    pub fn restart(&self, machine: bool) {
        let mut state = self.lock();
        if machine {
            state.lose();
        }
        state.inodes.iter_mut().for_each(|inode| inode.is_open = false);
        state.crashed = false;
        state.crash_after = None;
        state.life += 1;
    }

    /// The paths of all files below a folder.
    pub fn paths(&self, folder: &Path) -> Vec<PathBuf> {
        let state = self.lock();
        state.names.keys().map(PathBuf::from).filter(|path| path.starts_with(folder)).collect()
    }

    /// What is in a file, if it is there.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.lock();
        state.inode(path).ok().map(|inode| state.inodes[inode].data.clone())
    }

    /// Changes what is in a file, behind the back of whoever has it open.
    pub fn edit(&self, path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.lock();
        let inode = state.inode(path).unwrap();
        let inode = &mut state.inodes[inode];
        edit(&mut inode.data);
        inode.sync();
    }
}

impl DiskFile for SimFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.lock();
        if state.life != self.life {
            return Err(dead());
        }
        let (part, result) = match state.call() {
            None => (bytes.len(), Ok(())),
            Some((Part::None, error)) => (0, Err(error)),
            Some((Part::Some, error)) => (state.random.below(bytes.len() as u64 + 1) as usize, Err(error)),
            Some((Part::All, error)) => (bytes.len(), Err(error)),
        };
        state.inodes[self.inode].data.extend_from_slice(&bytes[..part]);
        result
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.lock();
        if state.life != self.life {
            return Err(dead());
        }
        let failure = state.call();
        if matches!(failure, None | Some((Part::All, _))) && !state.lies {
            state.inodes[self.inode].sync();
        }
        failure.map_or(Ok(()), |(_, error)| Err(error))
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let mut state = self.disk.lock();
        if state.life != self.life {
            return Err(dead());
        }
        let failure = state.call();
        if matches!(failure, None | Some((Part::All, _))) {
            let (inode, len) = (&mut state.inodes[self.inode], len as usize);
            if inode.uncut.is_none() {
                inode.uncut = Some((inode.data.clone(), inode.synced));
            }
            inode.data.truncate(len);
            inode.synced = inode.synced.min(len);
        }
        failure.map_or(Ok(()), |(_, error)| Err(error))
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = self.disk.lock();
        if state.life == self.life {
            state.inodes[self.inode].is_open = false;
        }
    }
}

impl Disk for SimDisk {
    fn open_append(&self, path: &Path, _advice: Advice) -> io::Result<(Box<dyn DiskFile>, u64)> {
        let mut state = self.lock();
        if let Some((_, error)) = state.call() {
            return Err(error);
        }
        let inode = state.inode(path).unwrap_or_else(|_| state.create(path, vec![]));
        if std::mem::replace(&mut state.inodes[inode].is_open, true) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (life, length) = (state.life, state.inodes[inode].data.len() as u64);
        Ok((Box::new(SimFile { disk: self.clone(), inode, life }), length))
    }

    fn create_new(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        let failure = state.call();
        if matches!(failure, None | Some((Part::All, _))) {
            if state.names.contains_key(&key(path)) {
                return Err(failure.map_or(io::ErrorKind::AlreadyExists.into(), |(_, error)| error));
            }
            state.create(path, contents.to_vec());
        }
        failure.map_or(Ok(()), |(_, error)| Err(error))
    }

    fn read_at(&self, path: &Path, position: u64, most: u64, _advice: Advice) -> io::Result<Bytes> {
        let mut state = self.lock();
        if let Some((_, error)) = state.call() {
            return Err(error);
        }
        let data = &state.inodes[state.inode(path)?].data;
        let from = (position as usize).min(data.len());
        let to = from.saturating_add(most as usize).min(data.len());
        Ok(Bytes::copy_from_slice(&data[from..to]))
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock();
        let failure = state.call();
        if failure.is_none() && !state.lies {
            let inode = state.inode(path)?;
            state.inodes[inode].sync();
        }
        failure.map_or(Ok(()), |(_, error)| Err(error))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let mut state = self.lock();
        if let Some((_, error)) = state.call() {
            return Err(error);
        }
        Ok(inside(&state.names, folder).map(|(name, _)| name.to_owned()).collect())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock();
        let failure = state.call();
        if matches!(failure, None | Some((Part::All, _))) {
            state.names.remove(&key(path));
        }
        failure.map_or(Ok(()), |(_, error)| Err(error))
    }

    fn create_folder(&self, _folder: &Path) -> io::Result<()> {
        let failure = self.lock().call();
        failure.map_or(Ok(()), |(_, error)| Err(error))
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let mut state = self.lock();
        let failure = state.call();
        if matches!(failure, None | Some((Part::All, _))) && !state.lies {
            let State { names, synced, .. } = &mut *state;
            let before: Vec<_> = inside(synced, folder).map(|(name, _)| key(&folder.join(name))).collect();
            before.iter().for_each(|path| _ = synced.remove(path));
            synced.extend(inside(names, folder).map(|(name, inode)| (key(&folder.join(name)), inode)));
        }
        failure.map_or(Ok(()), |(_, error)| Err(error))
    }
}
