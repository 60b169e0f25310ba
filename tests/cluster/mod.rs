//! Real processes of the binary, on files: the same outputs whatever the number of processes, of workers, and whatever their wall
//! clocks say; how they end.
//!
//! How processes meet and lose each other is in `lost.rs`, how they are started again in `supervise.rs`.
//!
//! Would catch: a process that is ahead or behind and holds the others back or gives records up, a worker without splits,
//! a split that is never found, a signal that is not obeyed.

mod lost;
mod supervise;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(60);
const STOP_WITHIN: Duration = Duration::from_secs(10);

fn until(what: &str, deadline: Duration, mut reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < deadline, "not reached: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The processes of one job. Those that still run are killed at the end.
struct Cluster {
    children: Vec<Child>,
    dir: TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill(); // it may have ended
            let _ = child.wait();
        }
    }
}

/// Ports that were free a moment ago. Each is given once, and none is of those that the system gives to connections: a connection of
/// another test could have it before somebody listens there.
pub fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(97); // other runs begin elsewhere
    let ports =
        std::iter::repeat_with(|| 10_000 + (first.wrapping_add(NEXT.fetch_add(1, Ordering::SeqCst)) % 22_000) as u16);
    ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).take(count).collect()
}

/// Addresses that were free a moment ago.
fn addresses(count: usize) -> Vec<String> {
    free_ports(count).iter().map(|port| format!("127.0.0.1:{port}")).collect()
}

impl Cluster {
    /// Starts processes of so many workers; the wall clock of process `i` is off by `(i % 3 - 1) * skew` seconds.
    fn start(args: &[String], processes: usize, workers: usize, skew: i64) -> Self {
        Cluster::start_in(tempfile::tempdir().unwrap(), args, processes, workers, skew)
    }

    /// The same with outputs below a folder that is there.
    fn start_in(dir: TempDir, args: &[String], processes: usize, workers: usize, skew: i64) -> Self {
        let mut cluster = Cluster { children: vec![], dir };
        let hosts = cluster.write_hosts("hosts", &addresses(processes));
        for process in 0..processes {
            let mut args = args.to_vec();
            if processes > 1 {
                args.extend(words(&format!("-n {processes} -p {process} -h {}", hosts.display())));
            }
            args.extend(words(&format!("-w {workers}")));
            cluster.spawn(&args, (process as i64 % 3 - 1) * skew);
        }
        cluster
    }

    fn write_hosts(&self, name: &str, addresses: &[String]) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, addresses.join("\n") + "\n").unwrap();
        path
    }

    /// Starts one more process, whose wall clock is off by so many seconds; its outputs have its number, in the order of starts.
    fn spawn(&mut self, args: &[String], skew: i64) {
        let file = |name: &str| File::create(self.dir.path().join(format!("{name}-{}", self.children.len()))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
        command.args(args).args(["--output_brokers", &format!("file:{}", self.dir.path().join("out").display())]);
        command.env("SYNCLINE_CLOCK_OFFSET", format!("{skew}s")).env("TMPDIR", self.dir.path());
        self.children.push(command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr")).spawn().unwrap());
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap()
    }

    fn signal(&self, process: usize, signal: &str) {
        let id = self.children[process].id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
    }

    /// Waits until all have ended, and gives their exit codes.
    fn wait(&mut self, deadline: Duration) -> Vec<Option<i32>> {
        let mut codes = BTreeMap::new();
        until("all processes end", deadline, || {
            for (process, child) in self.children.iter_mut().enumerate() {
                if let Some(status) = child.try_wait().unwrap() {
                    codes.insert(process, status.code());
                }
            }
            codes.len() == self.children.len()
        });
        codes.into_values().collect()
    }

    fn finish(&mut self) {
        let codes = self.wait(DEADLINE);
        assert!(codes.iter().all(|code| *code == Some(0)), "{codes:?}: {}", self.text("stderr-0"));
    }

    /// The lines of an output, sorted.
    fn lines(&self, output: &str) -> Vec<String> {
        let mut lines = vec![];
        for entry in fs::read_dir(self.dir.path().join("out")).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_str().unwrap().starts_with(&format!("fasten.{output}.out")) {
                lines.extend(fs::read_to_string(path).unwrap().lines().map(str::to_owned));
            }
        }
        lines.sort();
        lines
    }

    fn outputs(&self) -> [Vec<String>; 3] {
        ["sync", "delay", "dead"].map(|output| self.lines(output))
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn fasten(dataset: &Path) -> Vec<String> {
    words(&format!(
        "sync --brokers file:{} --topic_one fasten.callgraph.out --topic_two fasten.metadata.out \
         --topic_one_keys input.input.groupId,input.input.artifactId,input.input.version \
         --topic_two_keys input.input.input.groupId,input.input.input.artifactId,input.input.input.version \
         --window_time 60 --timestamp_field timestamp --clock event --max_disorder 5s \
         -o sync --delay_topic delay --enable_delay true --dead_letter_topic dead --until end",
        dataset.display()
    ))
}

#[test]
fn any_number_of_processes_and_workers_gives_the_same_outputs() {
    let data = tempfile::tempdir().unwrap();
    let out = data.path().join("fasten");
    // Nothing in it depends on how files interleave: neither duplicates nor late records.
    let make = "make fasten --keys 3000 --seed 7 --partitions 2 --payload 200 --rate 10 --window 60s --gap 20s --disorder 5s \
                --duplicates 0 --late 0 --bad 0.02 --ambiguous 0.02 --out";
    let mut args = words(make);
    args.push(out.display().to_string());
    syncline::datasets::run(&args, &mut vec![]).unwrap();

    let args = fasten(&out);
    let mut single = Cluster::start(&args, 1, 1, 0);
    single.finish();
    let expected = single.outputs();
    assert!(expected.iter().all(|lines| lines.len() > 50), "{:?}", expected.each_ref().map(Vec::len));
    let glob = |output: &str| single.dir.path().join(format!("out/fasten.{output}.out*.jsonl"));
    let check = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/check_answer.py"))
        .arg(out.join("expected"))
        .arg("--joined")
        .arg(glob("sync"))
        .arg("--delay")
        .arg(glob("delay"))
        .arg("--dead")
        .arg(glob("dead"))
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));

    for (processes, workers) in [(1, 3), (2, 1), (2, 2), (3, 1), (3, 3)] {
        let mut cluster = Cluster::start(&args, processes, workers, 10);
        cluster.finish();
        assert!(cluster.outputs() == expected, "{processes} processes of {workers} workers");
        let report = cluster.text("stdout-0");
        assert!(report.contains("conservation:"), "{report}");
    }
}

/// Two topics in a folder that grow: `one` in two files, `two` in one.
struct Growing {
    dir: TempDir,
}

impl Growing {
    fn new() -> Self {
        let growing = Growing { dir: tempfile::tempdir().unwrap() };
        for name in ["one-p0", "one-p1", "two-p0"] {
            growing.append(name, &[]);
        }
        growing
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.jsonl"))
    }

    fn append(&self, name: &str, keys: &[u64]) {
        let mut file = OpenOptions::new().create(true).append(true).open(self.path(name)).unwrap();
        let lines: String = keys.iter().map(|key| format!("{{\"k\":{key}}}\n")).collect();
        file.write_all(lines.as_bytes()).unwrap();
    }

    fn args(&self, window: u64) -> Vec<String> {
        words(&format!(
            "sync --brokers file:{} --topic_one one --topic_two two --topic_one_keys k --topic_two_keys k \
             --window_time {window} -o sync --delay_topic delay --enable_delay true --on_bad_record fail",
            self.dir.path().display()
        ))
    }
}

fn joined(keys: impl Iterator<Item = u64>) -> Vec<String> {
    let mut lines: Vec<_> =
        keys.map(|key| format!("{{\"key\":\"{key}\",\"one\":{{\"k\":{key}}},\"two\":{{\"k\":{key}}}}}")).collect();
    lines.sort();
    lines
}

#[test]
fn followed_files_with_skewed_clocks_and_a_split_that_appears_late() {
    // Three workers, two splits of topic one on the first two, that of topic two on the second: the third has none.
    for (processes, workers) in [(1, 3), (3, 1)] {
        let growing = Growing::new();
        let mut cluster = Cluster::start(&growing.args(300), processes, workers, 10);
        growing.append("one-p0", &[0, 1, 2]);
        growing.append("one-p1", &[3, 4, 5]);
        growing.append("two-p0", &[0, 1, 2, 3, 4, 5]);
        until("pairs are joined", DEADLINE, || cluster.lines("sync").len() == 6);
        growing.append("one-p2", &[6, 7, 8]);
        growing.append("two-p0", &[6, 7, 8, 9]);
        until("pairs of the late split are joined", DEADLINE, || cluster.lines("sync").len() == 9);
        for key in 10..40 {
            growing.append(&format!("one-p{}", key % 3), &[key]);
            growing.append("two-p0", &[key]);
            until("the pair is joined", DEADLINE, || cluster.lines("sync").len() as u64 == key);
        }
        cluster.signal(processes - 1, "TERM"); // one is enough: it tells the others
        let codes = cluster.wait(STOP_WITHIN);
        assert!(codes.iter().all(|code| *code == Some(0)), "{codes:?}: {}", cluster.text("stderr-0"));
        assert_eq!(cluster.lines("sync"), joined((0..40).filter(|key| *key != 9)));
        assert_eq!(cluster.lines("delay"), [""; 0]); // a signal gives nothing up
    }
}

#[test]
fn clocks_that_differ_by_more_than_the_window_give_nothing_up_early() {
    let growing = Growing::new();
    let mut cluster = Cluster::start(&growing.args(2), 3, 1, 3);
    for key in 0..30 {
        let (one, two) = (format!("one-p{}", key % 2), "two-p0");
        let (first, second) = if key % 3 == 0 { (two, one.as_str()) } else { (one.as_str(), two) };
        growing.append(first, &[key]);
        std::thread::sleep(Duration::from_millis(100)); // what the other side is late, far below the window
        growing.append(second, &[key]);
        until("the pair is joined", DEADLINE, || cluster.lines("sync").len() as u64 == key + 1);
    }
    growing.append("one-p0", &[30]);
    until("the delay", DEADLINE, || !cluster.lines("delay").is_empty());
    cluster.signal(0, "TERM");
    cluster.finish();
    assert_eq!(cluster.lines("sync"), joined(0..30));
    assert_eq!(cluster.lines("delay").len(), 1);
}

#[test]
fn a_process_that_is_killed_ends_the_others() {
    let growing = Growing::new();
    let mut cluster = Cluster::start(&growing.args(300), 3, 1, 0);
    growing.append("one-p0", &[0]);
    growing.append("two-p0", &[0]);
    until("the pair is joined", DEADLINE, || cluster.lines("sync").len() == 1);
    cluster.signal(1, "KILL");
    assert_eq!(cluster.wait(DEADLINE), [Some(1), None, Some(1)]);
    let said = cluster.text("stderr-0");
    let named =
        said.contains("syncline: the connection to process 1 (127.0.0.1:") && said.contains("was lost: it has ended");
    assert!(named || said.contains("syncline: a worker of the job has failed"), "{said}"); // told by process 2
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_first_signal_stops_the_job() {
    for signal in ["INT", "TERM"] {
        let growing = Growing::new();
        let mut cluster = Cluster::start(&growing.args(300), 1, 2, 0);
        growing.append("one-p0", &[0, 1]);
        growing.append("two-p0", &[0]);
        until("the pair is joined", DEADLINE, || cluster.lines("sync").len() == 1);
        cluster.signal(0, signal);
        assert_eq!(cluster.wait(STOP_WITHIN), [Some(0)]);
        assert_eq!((cluster.lines("sync"), cluster.lines("delay").len()), (joined(0..1), 0));
    }
}

#[test]
fn a_signal_ends_a_process_that_waits_for_others() {
    let growing = Growing::new();
    let dir = tempfile::tempdir().unwrap();
    let hosts = dir.path().join("hosts");
    let ports = free_ports(2);
    fs::write(&hosts, format!("127.0.0.1:{}\n127.0.0.1:{}\n", ports[0], ports[1])).unwrap();
    let mut args = growing.args(300);
    args.extend(words(&format!("-n 2 -p 0 -h {}", hosts.display())));
    let mut cluster = Cluster::start(&args, 1, 1, 0);
    until("it awaits the other process", DEADLINE, || std::net::TcpStream::connect(("127.0.0.1", ports[0])).is_ok());
    cluster.signal(0, "TERM");
    assert_eq!(cluster.wait(STOP_WITHIN / 2), [Some(0)]);
}

#[cfg(feature = "kafka")]
#[test]
fn a_stop_while_the_broker_is_away_is_no_failure() {
    let port = free_ports(1)[0];
    let line = format!(
        "sync -b 127.0.0.1:{port} --topic_one one --topic_two two --topic_one_keys k --topic_two_keys k --window_time 10 -o sync \
         --until end"
    );
    let mut cluster = Cluster::start(&words(&line), 1, 1, 0);
    until("the broker is asked again", DEADLINE, || cluster.text("stderr-0").contains("reading again"));
    cluster.signal(0, "TERM");
    assert_eq!(cluster.wait(STOP_WITHIN), [Some(0)], "{}", cluster.text("stderr-0"));
    assert!(!cluster.text("stderr-0").contains("ERROR"), "{}", cluster.text("stderr-0"));
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    // Nobody reads the pipe that the output is, so it cannot even be opened, and the job cannot stop.
    let growing = Growing::new();
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("out/fasten.sync.out-w0.jsonl");
    fs::create_dir(dir.path().join("out")).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut cluster = Cluster::start_in(dir, &growing.args(300), 1, 1, 0);
    until("the job reads", DEADLINE, || cluster.text("stderr-0").contains("reading"));
    cluster.signal(0, "TERM");
    until("the job stops", DEADLINE, || cluster.text("stderr-0").contains("stopping"));
    cluster.signal(0, "INT");
    assert_eq!(cluster.wait(STOP_WITHIN / 2), [Some(1)]);
}

#[test]
fn a_standard_error_that_is_gone_stops_nothing_but_the_log() {
    let growing = Growing::new();
    let mut cluster = Cluster::start(&growing.args(300), 1, 2, 0);
    cluster.signal(0, "KILL");
    cluster.wait(DEADLINE);
    let mut args = growing.args(300);
    args.extend(["--output_brokers".to_owned(), format!("file:{}", cluster.dir.path().join("out").display())]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
    command.args(&args).env("SYNCLINE_LOG", "trace").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    cluster.children = vec![command.spawn().unwrap()];
    drop(cluster.children[0].stderr.take());
    growing.append("one-p0", &[0]);
    growing.append("two-p0", &[0]);
    until("the pair is joined", DEADLINE, || cluster.lines("sync").len() == 1);
    cluster.signal(0, "TERM");
    assert_eq!(cluster.wait(STOP_WITHIN), [Some(0)]);
}

#[test]
fn two_jobs_do_not_write_the_same_files() {
    let growing = Growing::new();
    let mut cluster = Cluster::start(&growing.args(300), 1, 1, 0);
    growing.append("one-p0", &[0]);
    growing.append("two-p0", &[0]);
    until("the pair is joined", DEADLINE, || cluster.lines("sync").len() == 1);
    let mut args = growing.args(300);
    args.extend(["--output_brokers".to_owned(), format!("file:{}", cluster.dir.path().join("out").display())]);
    let second = Command::new(env!("CARGO_BIN_EXE_syncline")).args(&args).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1));
    assert!(said.contains("is written by another job"), "{said}");
    fs::write(cluster.dir.path().join("out/fasten.sync.out-w0.jsonl"), "").unwrap();
    growing.append("one-p0", &[1]);
    growing.append("two-p0", &[1]);
    assert_eq!(cluster.wait(DEADLINE), [Some(1)]);
    let said = cluster.text("stderr-0");
    assert!(said.contains("somebody else changed it"), "{said}");
}

#[test]
fn a_failure_ends_all_processes_and_one_says_why() {
    let growing = Growing::new();
    let mut cluster = Cluster::start(&growing.args(300), 2, 1, 10);
    growing.append("one-p0", &[0]);
    growing.append("two-p0", &[0]);
    until("the pair is joined", DEADLINE, || cluster.lines("sync").len() == 1);
    fs::write(growing.path("one-p2"), "nonsense\n").unwrap();
    let codes = cluster.wait(DEADLINE);
    assert_eq!(codes, [Some(1), Some(1)]);
    let said = [cluster.text("stderr-0"), cluster.text("stderr-1")];
    assert!(
        said.iter().any(|text| text.contains("syncline: message at offset 0 of split \"one-p2.jsonl\"")),
        "{said:?}"
    );
    assert!(said.iter().any(|text| text.contains("syncline: a worker of the job has failed")), "{said:?}");
}

#[test]
fn a_wrong_command_line_starts_nothing() {
    let growing = Growing::new();
    let mut args = growing.args(300);
    args.extend(words("--clock sun"));
    let mut cluster = Cluster::start(&args, 1, 1, 0);
    assert_eq!(cluster.wait(DEADLINE), [Some(2)]);
    assert!(!cluster.dir.path().join("out").exists());
}
