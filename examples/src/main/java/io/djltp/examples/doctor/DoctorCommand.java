package io.djltp.examples.doctor;

import ai.djl.Device;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDManager;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.train.DeviceOptions;
import io.djltp.examples.train.TrainingJob;
import io.djltp.internal.rank.RankPool;
import io.djltp.job.Job;
import io.djltp.launch.Backend;
import io.djltp.launch.Launcher;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.stream.IntStream;

/** Says what is here, which backend would be used and why not the others, and how fast each is. */
@Command(
        name = "doctor",
        description =
                "Shows what this machine has, which backend would carry out the collective"
                        + " operations and why not the others, and tests every backend that can be"
                        + " used. Start it as you would start training: alone, by mpirun, torchrun"
                        + " or Slurm.",
        mixinStandardHelpOptions = true)
public final class DoctorCommand implements Callable<Integer> {

    private static final Duration TIMEOUT = Duration.ofMinutes(2);
    private static final int DEFAULT_RANKS = 2;

    @Option(
            names = "--tp",
            description =
                    "Number of ranks (2, one for each GPU, or one for each process). On CPUs, use at"
                            + " most as many as cores.")
    private @Nullable Integer tp;

    @Option(
            names = "--megabytes",
            defaultValue = "64",
            description = "Largest message in MiB (${DEFAULT-VALUE}).")
    private int megabytes;

    @Option(names = "--json", description = "File for the figures.")
    private @Nullable Path json;

    private PrintStream out = System.out;
    private boolean right = true;

    /** Creates the command; its options are set by the command line. */
    public DoctorCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        if (megabytes < 1 || megabytes > 1024) {
            throw new BadInputException("--megabytes must be from 1 to 1024, not " + megabytes);
        }
        JsonFile.check("--json", json);
        Facts facts = new Facts();
        int gpus = Engine.getInstance().getGpuCount();
        int ranks = ranks(gpus);
        Map<String, Object> report = new LinkedHashMap<>();
        try (Job job = DeviceOptions.join(ranks, TIMEOUT)) {
            out = TrainingJob.out(job);
            facts.print(out);
            List<Device> devices = devices(job, ranks, gpus);
            String chosen = Backend.AUTO.choose(devices, job).getName();
            report.put("facts", facts.values);
            report.put("ranks", ranks);
            report.put("chosen", chosen);
            out.printf("%n%d ranks on %s%n", ranks, devices);
            Map<Backend, Map<String, Object>> backends = new LinkedHashMap<>();
            for (Backend backend : Backend.values()) {
                if (backend != Backend.AUTO) {
                    backends.put(backend, describe(backend, devices, job, chosen));
                }
            }
            report.put("backends", backends.values());
            for (Map.Entry<Backend, Map<String, Object>> each : backends.entrySet()) {
                if (Boolean.TRUE.equals(each.getValue().get("usable"))) {
                    measure(each.getKey(), each.getValue(), devices, job);
                }
            }
            if (job == null || job.getProcess() == 0) {
                JsonFile.write(json, report);
            }
        }
        out.printf("%n%s%n", right ? "All sums are right." : "SOME SUMS ARE WRONG.");
        return right ? 0 : 1;
    }

    private int ranks(int gpus) {
        int processes = DeviceOptions.processes();
        int fallback = gpus > 0 ? gpus : DEFAULT_RANKS;
        int ranks = tp != null ? tp : processes > 1 ? processes : fallback;
        if (ranks < 1 || ranks % processes != 0) {
            throw new BadInputException(
                    "--tp must be a multiple of the %d processes that were started, and 1 or more,"
                            + " not %d",
                    processes, ranks);
        }
        int local = ranks / processes;
        int most = Math.max(16, 4 * Runtime.getRuntime().availableProcessors());
        if (local > gpus && local > most) {
            throw new BadInputException(
                    "--tp %d is too many for this machine: each rank is a thread that waits for all"
                            + " others. Use at most %d, or as many as cores for sensible times",
                    ranks, most * processes);
        }
        return ranks;
    }

    private static List<Device> devices(@Nullable Job job, int ranks, int gpus) {
        int local = job == null ? ranks : job.getLocalRanks();
        Map<String, String> environment = System.getenv();
        int start = Launcher.localProcess(environment) * local;
        return start + local <= gpus
                ? IntStream.range(start, start + local).mapToObj(Device::gpu).toList()
                : Collections.nCopies(local, Device.cpu());
    }

    private Map<String, Object> describe(
            Backend backend, List<Device> devices, @Nullable Job job, String chosen) {
        Optional<String> obstacle = backend.whyNot(devices, job);
        boolean isChosen = backend.getName().equals(chosen);
        out.printf(
                "  %-6s %s%n",
                backend,
                obstacle.map(why -> "no: " + why).orElse(isChosen ? "yes, would be used" : "yes"));
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("name", backend.getName());
        result.put("usable", obstacle.isEmpty());
        obstacle.ifPresent(why -> result.put("why_not", why));
        return result;
    }

    private void measure(
            Backend backend, Map<String, Object> result, List<Device> devices, @Nullable Job job) {
        int ranks = job == null ? devices.size() : devices.size() * job.getProcesses();
        ParallelConfig config =
                ParallelConfig.builder()
                        .setMode(ParallelMode.TENSOR)
                        .setRanks(ranks)
                        .optDevices(devices)
                        .optJob(job)
                        .optBackend(backend)
                        .optTimeout(TIMEOUT)
                        .build();
        int bytes = megabytes << 20;
        List<AllReduceRun.Line> lines;
        double copySeconds;
        try (RankPool pool = new RankPool(config);
                NDManager manager = NDManager.newBaseManager()) {
            AllReduceRun run = new AllReduceRun(pool, manager);
            lines = run.run(bytes);
            copySeconds = run.copySeconds(bytes);
        }
        result.put("all_reduce", lines);
        result.put("copy_seconds", copySeconds); // as many threads as ranks, the largest message
        out.printf("%nall-reduce, float32, sum, in place, %d ranks, backend %s%n", ranks, backend);
        out.printf(
                "%12s %12s %12s %12s %8s%n",
                "size (B)", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong");
        for (AllReduceRun.Line line : lines) {
            right &= line.wrong() == 0;
            out.printf(
                    Locale.ROOT,
                    "%12d %12.1f %12.3f %12.3f %8d%n",
                    line.bytes(),
                    line.microseconds(),
                    line.algorithmGbs(),
                    line.busGbs(),
                    line.wrong());
        }
        out.printf(
                Locale.ROOT,
                "copying %d MiB in each rank's thread takes %.1f ms: the all-reduce runs at %.2f of"
                        + " that%n",
                megabytes,
                copySeconds * 1e3,
                copySeconds * 1e6 / lines.get(lines.size() - 1).microseconds());
    }
}
