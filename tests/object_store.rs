//! Jobs whose checkpoints are in an object store: Azurite, which behaves as Azure does, and Moto, which behaves as S3 does.
//!
//! Would catch: a request that only a store in memory understands, a signature that is not right, state that does not come back after
//! a kill, an old run that goes on beside a new one, an object that another client sees otherwise.
//!
//! Start them with `tests/brokers/azurite/start.sh` and `tests/brokers/moto/start.sh`, name them in `SYNCLINE_AZURITE` and
//! `SYNCLINE_MOTO`, and run with `--include-ignored`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use syncline::ErrorKind;
use syncline::checkpoint::{Begin, Store, inspect};
use syncline::sink::Slot;

const DEADLINE: Duration = Duration::from_secs(60);

/// How many keys come between two kills.
const KEYS: usize = 300;

/// A path of an object store that nothing else has.
struct Remote {
    url: String,
    properties: Vec<(String, String)>,
}

impl Remote {
    fn new(variable: &str, scheme: &str, properties: &[(&str, &str)]) -> Remote {
        let host = std::env::var(variable).unwrap_or_else(|_| {
            let name = variable.trim_start_matches("SYNCLINE_").to_lowercase();
            panic!("no server is named; start one: tests/brokers/{name}/start.sh DATA 9300 && export {variable}=127.0.0.1:9300")
        });
        let unique = tempfile::Builder::new().prefix("job-").tempdir().unwrap();
        let unique = unique.path().file_name().unwrap().to_str().unwrap().replace('.', "");
        let property = |(name, value): &(&str, &str)| ((*name).to_owned(), value.replace("HOST", &host));
        let properties = properties.iter().map(property).collect();
        Remote { url: format!("{scheme}://syncline/tests/{unique}"), properties }
    }

    /// The account and its key are those that every Azurite has.
    fn azurite() -> Remote {
        let key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
        Remote::new(
            "SYNCLINE_AZURITE",
            "abfs",
            &[
                ("azure_storage_account_name", "devstoreaccount1"),
                ("azure_storage_account_key", key),
                ("azure_storage_endpoint", "http://HOST/devstoreaccount1"),
                ("allow_http", "true"),
            ],
        )
    }

    fn moto() -> Remote {
        Remote::new(
            "SYNCLINE_MOTO",
            "s3",
            &[
                ("aws_access_key_id", "anybody"),
                ("aws_secret_access_key", "anything"),
                ("aws_endpoint", "http://HOST"),
                ("allow_http", "true"),
            ],
        )
    }

    fn args(&self) -> Vec<String> {
        self.properties.iter().flat_map(|(name, value)| ["--store".to_owned(), format!("{name}={value}")]).collect()
    }

    /// What `syncline state` says: exit code, standard output and error.
    fn state(&self, action: &str, more: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
        let output = command.args(["state", action, &self.url]).args(self.args()).args(more).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    fn location(&self) -> syncline::checkpoint::Location {
        syncline::checkpoint::open(&self.url, &self.properties).unwrap()
    }
}

/// Two topics in files that grow.
struct Scene {
    dir: tempfile::TempDir,
    remote: Remote,
}

impl Scene {
    fn new(remote: Remote) -> Scene {
        let scene = Scene { dir: tempfile::tempdir().unwrap(), remote };
        scene.append("one", 0..0);
        scene.append("two", 0..0);
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn append(&self, side: &str, keys: std::ops::Range<usize>) {
        let path = self.path(&format!("{side}.jsonl"));
        let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        let lines: String =
            keys.map(|key| format!("{{\"k\":{key},\"t\":{}}}\n", 1_600_000_000_000u64 + key as u64)).collect();
        file.write_all(lines.as_bytes()).unwrap();
    }

    /// Starts a run that says what it does in a file of its name.
    fn start(&self, name: &str, more: &str) -> Child {
        let line = format!(
            "sync -b file:{0} --topic_one one --topic_two two --topic_one_keys k --topic_two_keys k -o sync --window_time 3600 \
             --timestamp_field t --backendFolder {1} --checkpoint_every 20ms {more}",
            self.dir.path().display(),
            self.remote.url
        );
        let said = fs::File::create(self.path(name)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
        command.args(line.split_whitespace()).args(self.remote.args());
        command.stdout(Stdio::null()).stderr(said).spawn().unwrap()
    }

    fn said(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The keys that were joined.
    fn joined(&self) -> BTreeSet<u64> {
        let mut keys = BTreeSet::new();
        let Ok(entries) = fs::read_dir(self.path("out")) else { return keys };
        for entry in entries {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            keys.extend(whole.lines().map(|line| {
                let value: serde_json::Value = serde_json::from_str(line).unwrap();
                value["key"].as_str().unwrap().parse::<u64>().unwrap()
            }));
        }
        keys
    }

    fn until(&self, name: &str, what: &str, mut reached: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !reached() {
            assert!(begun.elapsed() < DEADLINE, "not reached: {what}; {}", self.said(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end of a run; its exit code.
    fn ended(&self, name: &str, run: &mut Child) -> Option<i32> {
        let mut code = None;
        self.until(name, "the end", || {
            let status = run.try_wait().unwrap();
            code = status.and_then(|status| status.code());
            status.is_some()
        });
        code
    }
}

fn signal(run: &Child, signal: i32) {
    // SAFETY: a system call on numbers; the process is a child that was not waited for.
    assert_eq!(unsafe { libc::kill(run.id() as i32, signal) }, 0);
}

/// What waits when a run is killed is joined by a later one: the keys of side two come a round after those of side one.
fn kills(remote: Remote) {
    let scene = Scene::new(remote);
    let sink = format!("--output_brokers file:{}", scene.path("out").display());
    for (round, workers) in [2, 3, 1, 2].into_iter().enumerate() {
        let mut run = scene.start("said", &format!("-w {workers} {sink}"));
        scene.append("one", round * KEYS..(round + 1) * KEYS);
        if round > 0 {
            scene.append("two", (round - 1) * KEYS..round * KEYS);
        }
        scene.until("said", "the keys of the round before are joined", || scene.joined().len() == round * KEYS);
        scene.until("said", "what is new is in a checkpoint", || {
            // Beside the job, and without a lock.
            let (code, out, _) = scene.remote.state("export", &[]);
            code == Some(0) && out.lines().filter(|line| line.contains("\"item\":\"waiting\"")).count() == KEYS
        });
        assert!(run.try_wait().unwrap().is_none(), "{}", scene.said("said"));
        run.kill().unwrap();
        run.wait().unwrap();
        let (code, out, err) = scene.remote.state("verify", &[]);
        assert!(code == Some(0) && out.contains("whole: "), "{out}{err}");
    }
    scene.append("two", 3 * KEYS..4 * KEYS);
    let mut run = scene.start("said", &format!("-w 3 {sink} --until end"));
    assert_eq!(scene.ended("said", &mut run), Some(0), "{}", scene.said("said"));
    assert_eq!(scene.joined(), (0..4 * KEYS as u64).collect());
    let (code, out, err) = scene.remote.state("ls", &[]);
    assert!(code == Some(0) && out.contains("run      5\n") && out.contains("workers  3, at most 3"), "{out}{err}");
    let (code, out, err) = scene.remote.state("show", &["--key", "7"]);
    assert!(code == Some(0) && out.contains("finished joined"), "{out}{err}");
}

/// A run that was stopped and goes on when another one has taken over ends, and says why.
fn fences(remote: Remote) {
    let scene = Scene::new(remote);
    let waiting = |count: usize| {
        let (code, out, _) = scene.remote.state("export", &[]);
        code == Some(0) && out.lines().count() == count
    };
    let mut old = scene.start("old", "--output_brokers memory:out");
    scene.append("one", 0..KEYS);
    scene.until("old", "a checkpoint", || waiting(KEYS));
    signal(&old, libc::SIGSTOP);
    let mut new = scene.start("new", "--output_brokers memory:out");
    scene.append("one", KEYS..2 * KEYS);
    scene.until("new", "a checkpoint", || waiting(2 * KEYS));
    signal(&old, libc::SIGCONT);
    assert_eq!(scene.ended("old", &mut old), Some(1));
    assert!(scene.said("old").contains("run 1 is fenced by run 2 in folder "), "{}", scene.said("old"));
    scene.append("one", 2 * KEYS..3 * KEYS);
    scene.until("new", "a checkpoint", || waiting(3 * KEYS));
    signal(&new, libc::SIGTERM);
    assert_eq!(scene.ended("new", &mut new), Some(0), "{}", scene.said("new"));
    let (code, out, err) = scene.remote.state("verify", &[]);
    assert!(code == Some(0) && out.contains("whole: "), "{out}{err}");
}

/// What is wrong with a store is said at once, and not tried for ever.
fn refusals(remote: Remote, missing: &str) {
    let nowhere = Remote { url: remote.url.replace("syncline", "nobody"), properties: remote.properties };
    let mut store = nowhere.location().store(Slot(0));
    let begun = Instant::now();
    let error = store.claim(false).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, false), "{error:?}");
    assert!(error.report().contains(missing), "{error:?}");
}

#[cfg(feature = "azure")]
#[test]
#[ignore = "needs Azurite"]
fn azure_a_killed_job_goes_on_with_other_numbers_of_workers() {
    kills(Remote::azurite());
}

#[cfg(feature = "azure")]
#[test]
#[ignore = "needs Azurite"]
fn azure_a_run_that_wakes_up_is_fenced() {
    fences(Remote::azurite());
}

#[cfg(feature = "azure")]
#[test]
#[ignore = "needs Azurite"]
fn azure_what_is_wrong_is_said_at_once() {
    refusals(Remote::azurite(), "ContainerNotFound");
    let mut wrong = Remote::azurite();
    wrong.properties[1].1 = "a2V5".to_owned();
    let error = wrong.location().store(Slot(0)).claim(false).unwrap_err();
    assert!(!error.is_retryable() && error.report().contains("AuthorizationFailure"), "{error:?}");
}

#[cfg(feature = "azure")]
#[test]
#[ignore = "needs Azurite"]
fn azure_of_runs_that_start_at_the_same_time_one_goes_on() {
    let scene = Scene::new(Remote::azurite());
    scene.append("one", 0..KEYS);
    let names = ["first", "second", "third"];
    let mut runs = names.map(|name| scene.start(name, "--output_brokers memory:out"));
    let mut alive: BTreeSet<usize> = (0..runs.len()).collect();
    scene.until("first", "one is left", || {
        alive.retain(|run| runs[*run].try_wait().unwrap().is_none());
        alive.len() <= 1
    });
    let left = alive.pop_first().expect("one goes on");
    for (name, run) in names.iter().zip(&mut runs).filter(|(name, _)| **name != names[left]) {
        assert_eq!(scene.ended(name, run), Some(1));
        assert!(scene.said(name).contains("is fenced by run "), "{}", scene.said(name));
    }
    scene.until(names[left], "a checkpoint", || {
        let (code, out, _) = scene.remote.state("export", &[]);
        code == Some(0) && out.lines().count() == KEYS
    });
    signal(&runs[left], libc::SIGTERM);
    assert_eq!(scene.ended(names[left], &mut runs[left]), Some(0), "{}", scene.said(names[left]));
}

#[cfg(feature = "azure")]
#[test]
#[ignore = "needs Azurite"]
fn azure_no_two_claims_are_the_same_run() {
    let remote = Remote::azurite();
    let runs: Vec<u64> = std::thread::scope(|scope| {
        let claims: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut store = remote.location().store(Slot(0));
                    loop {
                        match store.claim(false) {
                            Ok(claim) => return claim.run.0,
                            Err(error) => assert_eq!(error.kind(), ErrorKind::Fenced, "{error:?}"),
                        }
                    }
                })
            })
            .collect();
        claims.into_iter().map(|claim| claim.join().unwrap()).collect()
    });
    assert_eq!(runs.iter().collect::<BTreeSet<_>>().len(), 8, "{runs:?}");
}

/// Another client sees files as the page of the module says: a head, and parts that follow on each other.
#[cfg(feature = "azure")]
#[test]
#[ignore = "needs Azurite"]
fn azure_another_client_sees_the_same_objects() {
    use syncline::checkpoint::Frame;

    let remote = Remote::azurite();
    let location = remote.location();
    let mut store = location.store(Slot(0));
    store.claim(false).unwrap();
    store.begin(&Begin { num_slots: 1, ..Begin::default() }).unwrap();
    for range in 0..5 {
        store.append(&Frame { lower: range, upper: range + 1, clock: range, ..Frame::default() }).unwrap();
    }
    let bytes = inspect(location.folder().into(), location.disk()).unwrap().segments[0].bytes;

    let path = remote.url.split_once("syncline/").unwrap().1.to_owned() + "/";
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/brokers/azurite/blobs.sh");
    let host = std::env::var("SYNCLINE_AZURITE").unwrap();
    let output = Command::new(script).args([&host, "list", &path]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).unwrap();
    let sizes: BTreeMap<&str, u64> = listed
        .lines()
        .map(|line| line.strip_prefix(path.as_str()).unwrap().split_once(' ').unwrap())
        .map(|(name, size)| (name, size.parse().unwrap()))
        .collect();
    let segment = "segments/0000000001-00000-000000";
    let mut end = sizes[segment];
    let parts: Vec<_> = sizes.iter().filter_map(|(name, size)| Some((name.strip_prefix(segment)?, size))).collect();
    assert_eq!((end, parts.len()), (56, 1 + 5), "{listed}");
    for (name, size) in &parts[1..] {
        assert_eq!(*name, format!(".parts/{end:020}"));
        end += **size;
    }
    assert_eq!(end, bytes);
    let others: Vec<_> = sizes.keys().filter(|name| !name.starts_with(segment)).collect();
    assert_eq!(others, [&"claims/0000000001", &"manifests/0000000001"]);
}

#[cfg(feature = "s3")]
#[test]
#[ignore = "needs Moto"]
fn s3_a_killed_job_goes_on_with_other_numbers_of_workers() {
    kills(Remote::moto());
}

#[cfg(feature = "s3")]
#[test]
#[ignore = "needs Moto"]
fn s3_a_run_that_wakes_up_is_fenced() {
    fences(Remote::moto());
}

#[cfg(feature = "s3")]
#[test]
#[ignore = "needs Moto"]
fn s3_what_is_wrong_is_said_at_once() {
    refusals(Remote::moto(), "NoSuchBucket");
}
