//! State that survives: how often each word has come, over restarts and kills.
//!
//!     cargo run --release --example durable_reduce -- FOLDER OUT STATE [-w WORKERS] [-n PROCESSES -p PROCESS] [-h HOSTS]
//!
//! Follows `FOLDER/words*.jsonl`, lines such as `{"word":"some"}`; writes each new count to `OUT/counts-wN.jsonl`. Kill it at any
//! time: the next run, with any number of workers, goes on where the last checkpoint in `STATE` stands. What survives is the
//! collection that goes through `durable`; the state of `count` does not, and is built again from it.

use std::sync::Arc;

use syncline::broker::{self, BrokerOptions};
use syncline::checkpoint::{FolderStore, LocalDisk};
use syncline::codec::Json;
use syncline::dataflow::{Bincode, Input};
use syncline::timely::dataflow::operators::vec::Map;
use syncline::{Job, OutputRecord, Result};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
struct Line {
    word: String,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [folder, out] = [&args[1], &args[2]].map(|path| format!("file:{path}"));
    let state = std::path::PathBuf::from(&args[3]);
    let words =
        Input::new("words", broker::source(&folder, "words", &BrokerOptions::default())?, Json::<Line>::codec());
    let output = broker::sink(&out, &BrokerOptions::default())?;
    let store = move |slot| Box::new(FolderStore::new(state.clone(), Arc::new(LocalDisk), slot)) as Box<_>;
    Job::new("count words").store(Arc::new(store)).run_from_args(args.into_iter().skip(4), move |flow| {
        let words = flow.collection(&words)?.map(|line| line.word);
        let counts = flow.durable(words, "words", Bincode).count();
        let counted = counts.inner.flat_map(|((word, count), _epoch, diff)| {
            (diff > 0).then(|| OutputRecord::from(format!("{{\"word\":{word:?},\"count\":{count}}}")))
        });
        flow.write(&output, vec![("counts".into(), counted)])
    })
}
