//! The HTML report in a real browser: its script runs to the end and draws every chart.
//!
//! Needs Chromium or Chrome on the path (or named by `CHROMIUM`). Where there is none the test says
//! so and passes, unless `LLMSIM_REQUIRE_BROWSER` is set, as in CI.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::server::{FINISH, TOKEN, events, serve, whole};

fn browser() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("CHROMIUM") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    std::env::split_paths(&path)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|file| file.is_file())
}

/// The page after its script has run, as the browser has it.
fn rendered(browser: &Path, page: &Path) -> String {
    let profile = page.with_extension("profile");
    let out = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser runs");
    let _ = std::fs::remove_dir_all(profile);
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn report(name: &str, args: &[&str]) -> (PathBuf, String) {
    let virtual_run =
        ["--simulate", "builtin:models", "-m", "qwen-mock-batched", "--input-tokens", "512"];
    written(name, &[&virtual_run, args].concat())
}

fn written(name: &str, args: &[&str]) -> (PathBuf, String) {
    let folder = std::env::temp_dir().join(format!("llmsim-bench-page-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let page = folder.join(name);
    let out = Command::new(env!("CARGO_BIN_EXE_llmsim-bench"))
        .args(["--quiet", "--max-tokens", "64", "--html"])
        .arg(&page)
        .args(args)
        .output()
        .expect("the program runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = std::fs::read_to_string(&page).expect("a page");
    (page, text)
}

fn check(name: &str, args: &[&str], titles: &[&str], charts: usize) {
    check_page(&report(name, args), titles, charts);
}

/// What the page draws; `None` without a browser.
fn check_page((page, text): &(PathBuf, String), titles: &[&str], charts: usize) -> Option<String> {
    let loads = ["src=\"", "href=\"", "@import", "url(", "fetch("];
    for load in loads {
        assert!(!text.contains(load), "the page loads something: {load}");
    }
    let Some(browser) = browser() else {
        assert!(std::env::var_os("LLMSIM_REQUIRE_BROWSER").is_none(), "no browser found");
        eprintln!("no browser found: the page was written but not opened");
        return None;
    };
    let dom = rendered(&browser, page);
    assert!(dom.contains("data-ready=\"yes\""), "the script did not come to its end:\n{dom}");
    for title in titles {
        assert!(dom.contains(&format!("<h2>{title}</h2>")), "no section '{title}'");
    }
    let drawn = dom.split("<main").nth(1).and_then(|rest| rest.split("</main>").next());
    let drawn = drawn.expect("a main part");
    assert_eq!(drawn.matches("<svg").count(), charts);
    assert!(!drawn.contains("NaN") && !drawn.contains("undefined"), "a figure is missing");
    Some(drawn.to_owned())
}

/// Every fourth request is refused, and the next two keep the goal of 3.5 s: before the fourth
/// the server waits for longer. It says that its engine scheduled the tokens 2 and 4 ms after the
/// request had come.
#[test]
fn failures_goodput_and_the_servers_clock_are_shown() {
    const METRICS: &str = r#"{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":2},
        "metrics":{"queued_time":0.001,"first_token_scheduled":0.002,"first_token_released":0.0025,
        "first_token_sent":0.0025,"last_token_scheduled":0.004,"last_token_released":0.0045}}"#;
    let metrics = METRICS.replace('\n', "");
    let asked = AtomicU32::new(0);
    let address = serve(move |_, _, stream| {
        match asked.fetch_add(1, Ordering::SeqCst) % 4 {
            0 => return whole(stream, "503 Service Unavailable", "text/plain", "busy"),
            1 | 2 => {}
            _ => std::thread::sleep(std::time::Duration::from_secs(4)),
        }
        events(stream, &[TOKEN, TOKEN, FINISH, &metrics, "[DONE]"])
    });
    let url = format!("http://{address}/v1");
    let page = written(
        "live.html",
        &["--url", &url, "-m", "x", "-n", "8", "--warmup", "0", "--goodput", "ttft:3500"]
            .into_iter()
            .chain(["--concurrency", "1", "--no-server-metrics"])
            .collect::<Vec<_>>(),
    );
    let titles = ["Request by request", "Slowest requests", "Latency"];
    let Some(drawn) = check_page(&page, &titles, 4) else { return };
    for shown in [
        // 6 of 8 were answered, so the 99th percentile with failures is infinite, the median not.
        "TTFT p99 with failures",
        "+∞",
        "with failures as infinitely late",
        // Two of each four, 4 of 8.
        "goodput: 50% of sent",
        "Goodput: 4 of 8 sent (50%)",
        "kept TTFT ≤ 3.500 s",
        "<td>First token scheduled by the engine</td><td>6</td><td>2 ms</td>",
        "<td>Last token scheduled by the engine</td><td>6</td><td>4 ms</td>",
        "<td>Delivery of the first token</td><td>6</td>",
        "<th>first released</th><th>first sent</th><th>first received</th><th>delivery</th>",
        "class=\"clock\"",
        "scheduled by the engine",
    ] {
        assert!(drawn.contains(shown), "'{shown}' is not on the page");
    }
}

#[test]
fn one_level_is_drawn() {
    check(
        "one.html",
        &["--rate", "8", "--max-concurrency", "4", "-n", "150", "--goodput", "ttft:500"],
        &[
            "Over time",
            "Percentile spectrum of TTFT",
            "Latency",
            "Slowest requests",
            "Command and environment",
        ],
        4,
    );
}

#[test]
fn a_sweep_is_drawn_with_its_curve() {
    check(
        "sweep.html",
        &["--concurrency", "1,4,16,64", "-n", "64"],
        &["Sweep", "Over time", "Latency"],
        5,
    );
}

#[test]
fn text_from_outside_cannot_end_the_script() {
    let (_, text) = report(
        "quoted.html",
        &["-n", "2", "--prompt-prefix", "</script><script>alert(1)</script>"],
    );
    assert_eq!(text.matches("</script>").count(), 2, "the two of the page itself");
}
