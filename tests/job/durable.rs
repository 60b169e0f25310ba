//! Jobs of a user's own with a store: what goes through `durable` survives, with any number of workers.
//!
//! Would catch: results of a new record that are taken for those of restored state, items that come back twice or on two workers,
//! state that a job of other settings takes for its own.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use syncline::broker::memory::MemoryBroker;
use syncline::checkpoint::{FolderStore, LocalDisk, NewStore};
use syncline::codec::Json;
use syncline::dataflow::{Bincode, Flow, Input};
use syncline::sink::NewSink;
use syncline::source::NewSource;
use syncline::{ErrorKind, Job, OutputRecord, Result};
use timely::dataflow::operators::vec::Map;

use super::support::{Running, eager, options, until};

fn store(folder: &Path) -> NewStore {
    let folder = folder.to_owned();
    Arc::new(move |slot| Box::new(FolderStore::new(folder.clone(), Arc::new(LocalDisk), slot)))
}

/// How often each word has come.
fn count(source: &NewSource, sink: &NewSink) -> impl for<'s> Fn(&mut Flow<'s>) -> Result<()> + Send + Sync + use<> {
    let input = Input::new("words", Arc::clone(source), Json::<String>::codec());
    let sink = Arc::clone(sink);
    move |flow| {
        let words = flow.collection(&input)?;
        let counts = flow.durable(words, "words", Bincode).count();
        let counted = counts.inner.flat_map(|((word, count), _epoch, diff)| {
            let text = format!("{word} {count}");
            (diff > 0).then(|| OutputRecord::from(text))
        });
        flow.write(&sink, vec![("counts".into(), counted)])
    }
}

#[test]
fn counts_go_on_over_restarts_with_other_numbers_of_workers() {
    let (broker, folder) = (MemoryBroker::new(), tempfile::tempdir().unwrap());
    broker.create_topic("words", 3);
    broker.create_topic("counts", 1);
    let (source, sink) = (broker.source("words", &options()).unwrap(), broker.sink(&options()).unwrap());
    for round in 1..=40 {
        let words = ["one", "two", "three", "four"];
        for (split, word) in words.iter().enumerate() {
            broker.append("words", split as u32 % 3, format!("{word:?}")).unwrap();
        }
        let job = Job::new("count").store(store(folder.path())).retry(eager());
        let running = Running::start(job, 1 + round % 3, count(&source, &sink));
        let said = || broker.values("counts").into_iter().collect::<BTreeSet<_>>();
        until("every word is counted", || words.iter().all(|word| said().contains(&format!("{word} {round}"))));
        running.stop().unwrap();
        assert_eq!(said().len(), words.len() * round);
    }
}

#[test]
fn another_job_and_other_settings_are_refused_unless_they_are_accepted() {
    let (broker, folder) = (MemoryBroker::new(), tempfile::tempdir().unwrap());
    broker.create_topic("words", 1);
    broker.create_topic("counts", 1);
    let (source, sink) = (broker.source("words", &options()).unwrap(), broker.sink(&options()).unwrap());
    let job = |name: &str, window: &str| {
        let settings = vec![("window".to_owned(), window.to_owned())];
        Job::new(name).store(store(folder.path())).retry(eager()).settings(settings)
    };
    broker.append("words", 0, "\"some\"").unwrap();
    let running = Running::start(job("count", "1m"), 1, count(&source, &sink));
    until("it is counted", || !broker.values("counts").is_empty());

    let second = Running::start(job("count", "1m"), 1, count(&source, &sink)).join().unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Fenced);
    assert!(second.to_string().contains("--take_over"), "{second}");
    running.stop().unwrap();

    let changed = Running::start(job("count", "2m"), 1, count(&source, &sink)).join().unwrap_err();
    assert_eq!(changed.kind(), ErrorKind::Config);
    assert!(
        ["window", "1m", "2m", "--accept_changes"].iter().all(|part| changed.to_string().contains(part)),
        "{changed}"
    );
    let other = Running::start(job("sum", "1m"), 1, count(&source, &sink)).join().unwrap_err();
    assert!(["count", "sum"].iter().all(|part| other.to_string().contains(part)), "{other}");

    broker.append("words", 0, "\"some\"").unwrap();
    let running = Running::start(job("count", "2m").accept_changes(true), 2, count(&source, &sink));
    until("it is counted", || broker.values("counts").contains(&"some 2".to_owned()));
    running.stop().unwrap();
}

#[test]
fn a_run_that_is_taken_over_ends_and_publishes_no_more() {
    let (broker, folder) = (MemoryBroker::new(), tempfile::tempdir().unwrap());
    broker.create_topic("words", 1);
    broker.create_topic("counts", 1);
    let (source, sink) = (broker.source("words", &options()).unwrap(), broker.sink(&options()).unwrap());
    let job = || Job::new("count").store(store(folder.path())).retry(eager());
    broker.append("words", 0, "\"some\"").unwrap();
    let first = Running::start(job(), 1, count(&source, &sink));
    until("it is counted", || !broker.values("counts").is_empty());
    let second = Running::start(job().take_over(true), 2, count(&source, &sink));
    until("it goes on", || second.status.snapshot().bound > 0 || folder.path().join("claims/0000000002").exists());
    broker.append("words", 0, "\"some\"").unwrap();
    assert_eq!(first.join().unwrap_err().kind(), ErrorKind::Fenced);
    until("it is counted", || broker.values("counts").contains(&"some 2".to_owned()));
    second.stop().unwrap();
    let twice = broker.values("counts").iter().filter(|value| *value == "some 2").count();
    assert_eq!(twice, 1, "the first run has published what it could not make durable");
}
