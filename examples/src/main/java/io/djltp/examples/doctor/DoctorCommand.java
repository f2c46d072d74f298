package io.djltp.examples.doctor;

import ai.djl.Device;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDManager;

import com.google.gson.annotations.SerializedName;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.train.DeviceOptions;
import io.djltp.examples.train.TrainingJob;
import io.djltp.job.Job;
import io.djltp.launch.Backend;
import io.djltp.launch.Launcher;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankPool;

import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
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
            description = "Number of ranks (2, one for each GPU, or one for each process).")
    private Integer tp;

    @Option(
            names = "--megabytes",
            defaultValue = "64",
            description = "Largest message in MiB (${DEFAULT-VALUE}).")
    private int megabytes;

    @Option(names = "--json", description = "File for the figures.")
    private Path json;

    private PrintStream out = System.out;

    /** Creates the command; its options are set by the command line. */
    public DoctorCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        if (megabytes < 1 || megabytes > 1024) {
            throw new BadInputException("--megabytes must be from 1 to 1024, not " + megabytes);
        }
        JsonFile.check(json);
        DoctorReport report = new DoctorReport();
        Facts facts = new Facts();
        int gpus = Engine.getInstance().getGpuCount();
        report.ranks = ranks(gpus);
        try (Job job = DeviceOptions.join(report.ranks, TIMEOUT)) {
            boolean first = job == null || job.getProcess() == 0;
            out = TrainingJob.out(job);
            facts.print(out);
            report.facts = facts.values;
            List<Device> devices = devices(job, report.ranks, gpus);
            listBackends(report, devices, job);
            for (DoctorReport.BackendResult result : report.backends) {
                if (result.usable) {
                    measure(result, report, devices, job);
                }
            }
            if (first) {
                JsonFile.write(json, report);
            }
        }
        boolean right = report.backends.stream().allMatch(DoctorReport.BackendResult::isRight);
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
        return ranks;
    }

    private static List<Device> devices(Job job, int ranks, int gpus) {
        int local = job == null ? ranks : job.getLocalRanks();
        Map<String, String> environment = System.getenv();
        int start = Launcher.localProcess(environment) * local;
        return start + local <= gpus
                ? IntStream.range(start, start + local).mapToObj(Device::gpu).toList()
                : Collections.nCopies(local, Device.cpu());
    }

    private void listBackends(DoctorReport report, List<Device> devices, Job job) {
        report.chosen = Backend.AUTO.choose(devices, job).getName();
        out.printf("%n%d ranks on %s%n", report.ranks, devices);
        for (Backend backend : Backend.values()) {
            if (backend != Backend.AUTO) {
                Optional<String> obstacle = backend.whyNot(devices, job);
                DoctorReport.BackendResult result = new DoctorReport.BackendResult();
                result.name = backend.getName();
                result.usable = obstacle.isEmpty();
                result.whyNot = obstacle.orElse(null);
                report.backends.add(result);
                boolean chosen = result.name.equals(report.chosen);
                out.printf(
                        "  %-6s %s%n",
                        backend,
                        result.usable
                                ? chosen ? "yes, would be used" : "yes"
                                : "no: " + obstacle.get());
            }
        }
    }

    private void measure(
            DoctorReport.BackendResult result, DoctorReport report, List<Device> devices, Job job) {
        ParallelConfig config =
                ParallelConfig.builder()
                        .setMode(ParallelMode.TENSOR)
                        .setRanks(report.ranks)
                        .optDevices(devices)
                        .optJob(job)
                        .optBackend(Backend.of(result.name))
                        .optTimeout(TIMEOUT)
                        .build();
        int bytes = megabytes << 20;
        try (RankPool pool = new RankPool(config);
                NDManager manager = NDManager.newBaseManager()) {
            AllReduceRun run = new AllReduceRun(pool, manager);
            result.lines = run.run(bytes);
            result.copySeconds = run.copySeconds(bytes);
        }
        result.print(out, report.ranks);
    }

    /** What {@code tp doctor} has found, as {@code --json} writes it. */
    private static final class DoctorReport {

        Map<String, String> facts;
        int ranks;
        String chosen;
        List<BackendResult> backends = new ArrayList<>();

        /** What was found about one backend. */
        static final class BackendResult {

            String name;
            boolean usable;

            @SerializedName("why_not")
            String whyNot;

            @SerializedName("all_reduce")
            List<AllReduceRun.Line> lines;

            /** The time in which as many threads as ranks copy the largest message. */
            @SerializedName("copy_seconds")
            double copySeconds;

            boolean isRight() {
                return lines == null || lines.stream().allMatch(line -> line.wrong == 0);
            }

            void print(PrintStream out, int ranks) {
                out.printf(
                        "%nall-reduce, float32, sum, in place, %d ranks, backend %s%n",
                        ranks, name);
                out.printf(
                        "%12s %12s %12s %12s %8s%n",
                        "size (B)", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong");
                for (AllReduceRun.Line line : lines) {
                    out.printf(
                            Locale.ROOT,
                            "%12d %12.1f %12.3f %12.3f %8d%n",
                            line.bytes,
                            line.microseconds,
                            line.algorithmGbs,
                            line.busGbs,
                            line.wrong);
                }
                AllReduceRun.Line last = lines.get(lines.size() - 1);
                out.printf(
                        Locale.ROOT,
                        "copying %d MiB in each rank's thread takes %.1f ms: the all-reduce runs at"
                                + " %.2f of that%n",
                        last.bytes >> 20,
                        copySeconds * 1e3,
                        copySeconds * 1e6 / last.microseconds);
            }
        }
    }
}
