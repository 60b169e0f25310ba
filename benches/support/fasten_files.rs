//! The FASTEN dataset in files, `syncline sync` on it as a process, and whether its answer is right.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use xxhash_rust::xxh3::xxh3_64;

use crate::support::{Usage, run_child};

/// How long a record waits.
pub(crate) const WINDOW_SECONDS: u64 = 300;
/// How far behind a timestamp may be.
pub(crate) const DISORDER_SECONDS: u64 = 10;
/// The topics of both sides.
pub(crate) const TOPICS: [&str; 2] = ["fasten.callgraph.out", "fasten.metadata.out"];

/// How many keys, and a sum over their hashes.
pub(crate) type Keys = (u64, u64);

/// The right answer, as far as it is compared.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) records: u64,
    pub(crate) joined: Keys,
    pub(crate) delayed: Keys,
}

/// The dataset, and where outputs go.
pub(crate) struct Files {
    pub(crate) data: PathBuf,
    pub(crate) out: PathBuf,
    pub(crate) expected: Expected,
}

impl Files {
    /// Makes the dataset, if it was not made before.
    pub(crate) fn new(keys: u64) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fasten-{keys}"));
        let (data, out) = (folder.join("data"), folder.join("out"));
        let text = |path: &Path| path.to_str().expect("the path of the target folder is text").to_owned();
        if !data.join("expected/answer.json").exists() {
            println!("making {keys} keys in {data:?}");
            let args = ["make", "fasten", "--keys", &keys.to_string(), "--out", &text(&data)].map(str::to_owned);
            syncline::datasets::run(&args, &mut std::io::sink()).expect("the dataset can be made");
        }
        let answer = fs::read_to_string(data.join("expected/answer.json")).expect("the answer can be read");
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("the answer is JSON");
        let expected = Expected {
            records: answer["totals"]["records"].as_u64().expect("the answer counts records"),
            joined: keys_in(&data.join("expected"), "joined", "\"key\":\""),
            delayed: keys_in(&data.join("expected"), "delayed", "\"key\":\""),
        };
        Files { data, out, expected }
    }

    /// Runs the job, with more options.
    pub(crate) fn ours(&self, options: &[&str]) -> Usage {
        self.measure(self.job(options), ["fasten.joined.out", "fasten.delayed.out"])
    }

    /// The job, with more options.
    pub(crate) fn job(&self, options: &[&str]) -> Command {
        let (data, out) = (self.data.display(), self.out.display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
        command
            .args(["sync", "--brokers", &format!("file:{data}"), "--output_brokers", &format!("file:{out}")])
            .args(["--topic_one", TOPICS[0], "--topic_two", TOPICS[1], "--name_one", "one", "--name_two", "two"])
            .args(["--topic_one_keys", "input.input.groupId,input.input.artifactId,input.input.version"])
            .arg("--topic_two_keys")
            .arg("input.input.input.groupId,input.input.input.artifactId,input.input.input.version")
            .args(["-o", "joined", "--delay_topic", "delayed", "--enable_delay", "true"])
            .args(["--window_time", &WINDOW_SECONDS.to_string(), "--timestamp_field", "timestamp"])
            .args(["--clock", "event", "--max_disorder", &format!("{DISORDER_SECONDS}s"), "--until", "end"])
            .args(options);
        command
    }

    /// Runs a side, and compares what it has written.
    pub(crate) fn measure(&self, mut command: Command, outputs: [&str; 2]) -> Usage {
        if self.out.exists() {
            fs::remove_dir_all(&self.out).expect("the old output can be removed");
        }
        fs::create_dir_all(&self.out).expect("the folder of the output can be made");
        let (status, usage) = run_child(command.stdout(Stdio::null())).expect("the process starts");
        assert!(status.success(), "{command:?} ends with {status}");
        let answer = outputs.map(|name| keys_in(&self.out, name, "{\"key\":\""));
        let Expected { joined, delayed, .. } = self.expected;
        assert_eq!(answer, [joined, delayed], "the answer of {command:?} is wrong");
        fs::remove_dir_all(&self.out).expect("the output can be removed");
        usage
    }
}

/// The keys of the files `NAME*.jsonl` of a folder: each line has one behind the first `mark`.
fn keys_in(folder: &Path, name: &str, mark: &str) -> Keys {
    let mut keys = (0, 0u64);
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let entry = entry.expect("the folder can be read");
        if !entry.file_name().to_str().is_some_and(|file| file.starts_with(name) && file.ends_with(".jsonl")) {
            continue;
        }
        let mut lines = BufReader::with_capacity(1 << 20, File::open(entry.path()).expect("the file can be read"));
        let mut line = vec![];
        while lines.read_until(b'\n', &mut line).expect("the file can be read") > 0 {
            let start = memchr::memmem::find(&line, mark.as_bytes()).expect("a line has a key") + mark.len();
            let end = start + memchr::memchr(b'"', &line[start..]).expect("a key ends");
            keys = (keys.0 + 1, keys.1.wrapping_add(xxh3_64(&line[start..end])));
            line.clear();
        }
    }
    keys
}
