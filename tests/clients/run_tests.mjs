// Runs tests one after another, tells how each ended and how many did, and ends the process.
//
// Not a framework: each file of tests says by itself what it tests against.

export async function run(what, tests) {
  let [passed, failed] = [0, 0];
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test();
      passed += 1;
      console.log(`${name} ... ok`);
    } catch (error) {
      failed += 1;
      console.log(`${name} ... FAILED\n${error.stack ?? error}`);
    }
  }
  console.log(`${what}: ${passed} passed, ${failed} failed`);
  process.exit(failed > 0 ? 1 : 0);
}
