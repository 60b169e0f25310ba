//! An object store in memory that makes trouble as it is told: requests fail before or after they were carried out, some are carried
//! out late, conditions are not kept to. It counts requests.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use crate::checkpoint::sim::Random;

/// What becomes of the next request that makes an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It fails, and nothing was done.
    Fails,
    /// It fails, though all was done.
    AnswerLost,
    /// It fails, and is done when [`Trouble::land`] is called.
    Late,
    /// It is told that the object exists, which it does not.
    Conflict,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// One in so many requests fails; 0 is none.
    fault: u64,
    /// The request at which everything ends.
    crash_after: Option<u64>,
    crashed: bool,
    fates: Vec<Fate>,
    late: Vec<(Key, PutPayload)>,
    /// Conditions are not kept to.
    careless: bool,
    counts: BTreeMap<&'static str, u64>,
}

/// Clones are the same store.
#[derive(Clone, Debug)]
pub struct Trouble {
    pub inner: Arc<InMemory>,
    state: Arc<Mutex<State>>,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a store that makes trouble")
    }
}

fn broken() -> Error {
    Error::Generic { store: "trouble", source: "the connection was lost".into() }
}

impl Trouble {
    pub fn new(seed: u64) -> Self {
        let state = State {
            random: Random(seed),
            fault: 0,
            crash_after: None,
            crashed: false,
            fates: vec![],
            late: vec![],
            careless: false,
            counts: BTreeMap::new(),
        };
        Trouble { inner: Arc::new(InMemory::new()), state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn plan(&self, fault: u64, crash_after: Option<u64>) {
        let mut state = self.lock();
        (state.fault, state.crash_after) = (fault, crash_after);
    }

    pub fn has_crashed(&self) -> bool {
        self.lock().crashed
    }

    pub fn restart(&self) {
        let mut state = self.lock();
        (state.crashed, state.crash_after) = (false, None);
    }

    /// What becomes of the next requests that make objects.
    pub fn fates(&self, fates: &[Fate]) {
        self.lock().fates = fates.iter().rev().copied().collect();
    }

    pub fn keeps_to_nothing(&self) {
        self.lock().careless = true;
    }

    /// Carries out what is late.
    pub fn land(&self) {
        let late = std::mem::take(&mut self.lock().late);
        let put = |(key, payload): (Key, PutPayload)| {
            futures_util::FutureExt::now_or_never(self.inner.put_opts(&key, payload, PutMode::Create.into()))
        };
        assert!(late.into_iter().map(put).all(|put| put.is_some_and(|put| put.is_ok())));
    }

    /// How many requests there were of each kind since the last call.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut self.lock().counts)
    }

    /// Whether a request is to fail: before it is done, or after.
    fn call(&self, what: &'static str) -> Option<bool> {
        let mut state = self.lock();
        *state.counts.entry(what).or_default() += 1;
        if state.crashed {
            return Some(false);
        }
        let done = state.random.one_in(2);
        if let Some(left) = &mut state.crash_after {
            if *left == 0 {
                state.crashed = true;
                return Some(done);
            }
            *left -= 1;
        }
        let fault = state.fault;
        (fault > 0 && state.random.one_in(fault)).then_some(done)
    }
}

#[async_trait::async_trait]
impl ObjectStore for Trouble {
    async fn put_opts(&self, key: &Key, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        let failure = self.call("put");
        let fate = {
            let mut state = self.lock();
            if state.careless {
                options.mode = PutMode::Overwrite;
            }
            state.fates.pop()
        };
        match fate {
            Some(Fate::Fails) => return Err(broken()),
            Some(Fate::Conflict) => {
                return Err(Error::AlreadyExists { path: key.to_string(), source: "409 Conflict".into() });
            }
            Some(Fate::Late) => {
                self.lock().late.push((key.clone(), payload));
                return Err(broken());
            }
            Some(Fate::AnswerLost) | None => {}
        }
        if failure == Some(false) {
            return Err(broken());
        }
        let put = self.inner.put_opts(key, payload, options).await;
        if failure.is_some() || fate.is_some() { Err(broken()) } else { put }
    }

    async fn put_multipart_opts(&self, _: &Key, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        unreachable!("there is no condition on it")
    }

    async fn get_opts(&self, key: &Key, options: GetOptions) -> Result<GetResult> {
        match self.call("get") {
            Some(_) => Err(broken()),
            None => self.inner.get_opts(key, options).await,
        }
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Key>>) -> BoxStream<'static, Result<Key>> {
        let trouble = self.clone();
        let delete = move |key: Key| {
            let trouble = trouble.clone();
            async move {
                let failure = trouble.call("delete");
                if failure != Some(false) {
                    let one = stream::once(futures_util::future::ready(Ok(key.clone()))).boxed();
                    let gone: Vec<Result<Key>> = trouble.inner.delete_stream(one).collect().await;
                    assert_eq!(gone.len(), 1);
                }
                if failure.is_some() { Err(broken()) } else { Ok(key) }
            }
        };
        keys.and_then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.call("list") {
            Some(_) => stream::once(futures_util::future::ready(Err(broken()))).boxed(),
            None => self.inner.list(prefix),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> Result<ListResult> {
        match self.call("list") {
            Some(_) => Err(broken()),
            None => self.inner.list_with_delimiter(prefix).await,
        }
    }

    async fn copy_opts(&self, _: &Key, _: &Key, _: CopyOptions) -> Result<()> {
        unreachable!("nothing is copied")
    }
}
