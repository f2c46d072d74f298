package io.djltp.report;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.Trainer;

import com.google.gson.Gson;
import com.google.gson.JsonObject;

import io.djltp.collective.AbstractCommunicator;
import io.djltp.cut.Cut;
import io.djltp.internal.files.SideFolder;
import io.djltp.optimizer.OptimizerState;
import io.djltp.parameters.ParallelParameters;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;
import io.djltp.rank.StepParticipant;
import io.djltp.report.TimeSplit.RankCalls;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.training.ParallelTrainer;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * A page of HTML that shows a training while it runs: curves of the loss, of evaluators and of the
 * throughput, what each rank holds, where the time of a step goes, and how the parameters are cut.
 * One file that needs no other; a browser that shows it shows the next one some seconds later.
 *
 * <pre>{@code
 * TrainingReport report = TrainingReport.builder().setFile(Path.of("run.html")).build();
 * config.addTrainingListeners(TrainingListener.Defaults.logging()).addTrainingListeners(report);
 * }</pre>
 *
 * <p>It comes after DJL's listeners, which compute what evaluators have found. In a loop that
 * notifies no listeners, {@link #addStep} takes their place.
 *
 * <p>Times are those that the threads of the ranks take: on a GPU, which computes while its thread
 * goes on, only the time of the step is what it seems. A page that cannot be written is a warning,
 * once, and no end of the training.
 */
public final class TrainingReport extends TrainingFigures {

    private static final Logger logger = LoggerFactory.getLogger(TrainingReport.class);

    /** Writes a less-than sign as an escape: no text can end the script that the data lie in. */
    private static final Gson GSON = new Gson();

    private static final String TIME = "time";

    private static final int MOST_PARAMETERS = 200; // more rows nobody reads

    private final ReportPage page;
    private final String title;
    private final Map<String, String> facts;
    private final long interval;
    private final Map<String, Curve> curves = new LinkedHashMap<>();
    private final List<RankCalls> calls = new ArrayList<>();
    private final List<Map<String, Long>> totals = new ArrayList<>();
    private final Set<String> kinds = new LinkedHashSet<>();
    private List<RankRow> ranks = List.of();
    private List<ParameterRow> picture = List.of();
    private String mesh = "";
    private long split; // steps whose time was split
    private long nextPage = System.nanoTime();
    private boolean started;
    private boolean failed;
    private boolean closed;

    /** What the script of the page reads. */
    private record Data(
            String title,
            boolean running,
            boolean early,
            double interval,
            String written,
            long steps,
            String mesh,
            Map<String, String> facts,
            List<JsonObject> curves,
            List<RankRow> ranks,
            List<ParameterRow> parameters) {}

    /**
     * What a rank holds and does.
     *
     * @param rank its number
     * @param weights the bytes of its shards and replicas
     * @param state the bytes of what the optimizer keeps of them
     * @param times the mean milliseconds of a step by what they were spent on
     */
    private record RankRow(int rank, long weights, long state, Map<String, Double> times) {}

    /**
     * How a parameter is cut.
     *
     * @param axis the axis that is cut, or -1
     * @param length its length
     * @param ranges beginnings and ends of the ranges of each rank of a tensor-parallel group
     */
    private record ParameterRow(
            String name, String shape, int axis, long length, List<List<long[]>> ranges) {}

    private TrainingReport(Builder builder) {
        page = new ReportPage(builder.file);
        title = builder.title;
        facts = new LinkedHashMap<>(builder.facts);
        interval = builder.interval.toNanos();
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    @Override
    void accept(String chart, String name, String unit, long step, double value) {
        curves.computeIfAbsent(chart + '/' + name, key -> new Curve(chart, name, unit))
                .add(step, value);
    }

    /** {@inheritDoc} The page shows them. */
    @Override
    public void resume(List<Float> losses) {
        super.resume(losses);
        for (int i = 0; i < losses.size(); i++) {
            accept(LOSS, "training", "", i + 1, losses.get(i));
        }
    }

    @Override
    void endStep(Trainer trainer, double seconds) {
        if (trainer instanceof ParallelTrainer parallel) {
            if (!started) {
                start(parallel);
            } else {
                splitTime(seconds);
            }
        }
        started = true;
        if (System.nanoTime() >= nextPage) {
            look(trainer);
            write(true);
            nextPage = System.nanoTime() + interval;
        }
    }

    @Override
    void begin(Trainer trainer) {
        calls.forEach(RankCalls::take); // that of an evaluation is no step's
    }

    private void start(ParallelTrainer trainer) {
        RankPool pool = trainer.getRanks();
        for (int i = 0; i < pool.size(); i++) {
            ParallelContext context = pool.getContext(i);
            calls.add(new RankCalls(AbstractCommunicator.of(context.getWorld()).getRecorder()));
            totals.add(new LinkedHashMap<>());
        }
        mesh = pool.getContext(0).getMesh().toString();
        picture = picture(trainer);
    }

    private void splitTime(double seconds) {
        List<RankCalls.Stretch> stretches = calls.stream().map(RankCalls::take).toList();
        if (!(seconds > 0)) {
            return;
        }
        List<Map<String, Long>> splits = TimeSplit.of(stretches, (long) (seconds * 1e9));
        split++;
        for (int i = 0; i < splits.size(); i++) {
            Map<String, Long> total = totals.get(i);
            splits.get(i).forEach((what, nanos) -> total.merge(what, nanos, Long::sum));
        }
        kinds.addAll(splits.get(0).keySet());
        for (String kind : kinds) { // also those of other steps: a mean is of all steps
            long nanos = splits.get(0).getOrDefault(kind, 0L);
            accept(TIME, kind, "ms", getStep(), nanos / 1e6);
        }
        accept(TIME, "step", "ms", getStep(), seconds * 1e3);
    }

    /** Looks at what takes memory. */
    private void look(Trainer trainer) {
        SystemMemory.resident()
                .ifPresent(
                        bytes ->
                                accept(
                                        "memory",
                                        "process",
                                        "MiB",
                                        getStep(),
                                        bytes / (double) (1 << 20)));
        if (trainer instanceof ParallelTrainer parallel) {
            ranks = parallel.getRanks().run(context -> held(parallel, context));
        }
    }

    private static RankRow held(ParallelTrainer trainer, ParallelContext context) {
        int rank = context.getLocalIndex();
        RankParameterStore store = trainer.getParameterStore(rank);
        long weights = 0;
        for (Parameter parameter : trainer.getState().getParameters().getAll()) {
            if (store.contains(parameter)) {
                weights += bytes(store.getHeld(parameter));
            }
        }
        long state = 0;
        OptimizerState kept = trainer.getOptimizerState(rank);
        try (NDManager manager = store.getManager().newSubManager()) {
            for (String name : kept.getNames()) {
                state += bytes(kept.get(name, manager));
            }
            for (StepParticipant participant : context.getParticipants()) {
                state += bytes(participant.getState(manager));
            }
        }
        return new RankRow(context.getRank(), weights, state, Map.of());
    }

    private static long bytes(Map<String, NDArray> arrays) {
        return arrays.values().stream().mapToLong(TrainingReport::bytes).sum();
    }

    private static long bytes(NDArray array) {
        return array.size() * array.getDataType().getNumOfBytes();
    }

    /** Returns which ranges of each parameter the ranks of a tensor-parallel group have. */
    private static List<ParameterRow> picture(ParallelTrainer trainer) {
        ParallelParameters parameters = trainer.getState().getParameters();
        int ranks = trainer.getRanks().getContext(0).getTensorGroup().getSize();
        List<ParameterRow> rows = new ArrayList<>();
        for (Parameter parameter : parameters.getAll()) {
            if (rows.size() == MOST_PARAMETERS) {
                break;
            }
            ShardingStrategy strategy = parameters.getStrategy(parameter);
            String name = parameters.nameOf(parameter);
            Shape shape = parameter.getShape();
            if (strategy == null || ranks == 1) {
                rows.add(new ParameterRow(name, shape.toString(), -1, 0, List.of()));
            } else {
                int axis = strategy.axis(shape);
                List<List<long[]>> ranges = ranges(strategy.cut(shape, ranks));
                rows.add(new ParameterRow(name, shape.toString(), axis, shape.get(axis), ranges));
            }
        }
        return rows;
    }

    private static List<List<long[]>> ranges(Cut cut) {
        List<List<long[]>> ranks = new ArrayList<>();
        for (int rank = 0; rank < cut.getRanks(); rank++) {
            ranks.add(
                    cut.getRanges(rank).stream()
                            .map(range -> new long[] {range.start(), range.end()})
                            .toList());
        }
        return ranks;
    }

    private void write(boolean running) {
        List<RankRow> rows = new ArrayList<>();
        for (RankRow each : ranks) {
            Map<String, Double> times = new LinkedHashMap<>();
            totals.get(rows.size())
                    .forEach((what, nanos) -> times.put(what, nanos / 1e6 / Math.max(1, split)));
            rows.add(new RankRow(each.rank(), each.weights(), each.state(), times));
        }
        Data data =
                new Data(
                        title,
                        running,
                        isEarly(),
                        interval / 1e9,
                        Instant.now().toString(),
                        getStep(),
                        mesh,
                        facts,
                        curves.values().stream().map(Curve::toJson).toList(),
                        rows,
                        picture);
        try {
            page.write(data);
            failed = false;
        } catch (IOException e) {
            if (!failed) {
                logger.warn("The report {} cannot be written: {}", page, e.toString());
            }
            failed = true;
        }
    }

    /** Writes the page for the last time; it then is that of a training that has ended. */
    @Override
    public void close() {
        if (!closed && started) {
            calls.forEach(RankCalls::end);
            write(false);
        }
        closed = true;
    }

    /** Builds a {@link TrainingReport}. */
    public static final class Builder {

        private Path file;
        private String title = "Training";
        private Duration interval = Duration.ofSeconds(5);
        private final Map<String, String> facts = new LinkedHashMap<>();

        private Builder() {}

        /**
         * Sets the file.
         *
         * @param htmlFile the file, which is replaced if it is there
         * @return this builder
         */
        public Builder setFile(Path htmlFile) {
            file = htmlFile;
            return this;
        }

        /**
         * Sets the title of the page.
         *
         * @param text the title
         * @return this builder
         */
        public Builder optTitle(String text) {
            title = text;
            return this;
        }

        /**
         * Sets how often the page is written.
         *
         * @param time the time between two pages, 5 seconds by default
         * @return this builder
         * @throws IllegalArgumentException if it is less than a second
         */
        public Builder optInterval(Duration time) {
            if (time.toMillis() < 1000) {
                throw new IllegalArgumentException(
                        "The interval of a report must be a second or more, not " + time);
            }
            interval = time;
            return this;
        }

        /**
         * Adds a line to what the page says of the training.
         *
         * @param name such as {@code optimizer}
         * @param value such as {@code adam}
         * @return this builder
         */
        public Builder optFact(String name, String value) {
            facts.put(name, value);
            return this;
        }

        /**
         * Builds the report. Nothing is written before the first step.
         *
         * @return the report
         * @throws IllegalArgumentException if there is no file, or it cannot be written
         */
        public TrainingReport build() {
            if (file == null) {
                throw new IllegalArgumentException("A report needs a file: setFile(path)");
            }
            ReportPage.check(file);
            return new TrainingReport(this);
        }
    }

    /**
     * The file of a report: a page with its style, the charting library uPlot, and the data in it.
     */
    static final class ReportPage {

        /** The build of uPlot that is a script and needs no other. */
        private static final String CHARTS = "/META-INF/resources/webjars/uplot/1.6.30/dist/";

        private final Path file;
        private String before; // the data
        private String after;

        ReportPage(Path file) {
            this.file = file.toAbsolutePath();
        }

        /** Checks that a file can be written. */
        static void check(Path file) {
            Path folder = file.toAbsolutePath().getParent();
            if (Files.isDirectory(file)) {
                throw new IllegalArgumentException(
                        "The report " + file + " is a folder: name a file");
            }
            if (folder == null || !Files.isDirectory(folder) || !Files.isWritable(folder)) {
                throw new IllegalArgumentException(
                        "The report "
                                + file
                                + " cannot be written: "
                                + folder
                                + " must be a folder that is there and can be written to");
            }
        }

        /** Replaces the page: whoever opens it gets the old one or the new one. */
        void write(Data data) throws IOException {
            if (before == null) {
                read();
            }
            String refresh =
                    data.running()
                            ? "<meta http-equiv=\"refresh\" content=\""
                                    + Math.round(data.interval())
                                    + "\">"
                            : "";
            String text = before.replace("<!-- refresh -->", refresh) + GSON.toJson(data) + after;
            try (SideFolder side = SideFolder.in(file.getParent())) {
                Files.writeString(side.resolve(file.getFileName().toString()), text);
                side.replace();
            }
        }

        private void read() throws IOException {
            String page =
                    resource("report.html")
                            .replace("/* charts.css */", resource(CHARTS + "uPlot.min.css"))
                            .replace("/* report.css */", resource("report.css"))
                            .replace("/* report.js */", resource("report.js"))
                            .replace("/* charts.js */", resource(CHARTS + "uPlot.iife.min.js"));
            String[] parts = page.split("/\\* data \\*/", 2);
            before = parts[0];
            after = parts[1];
        }

        private static String resource(String name) throws IOException {
            try (InputStream in = ReportPage.class.getResourceAsStream(name)) {
                if (in == null) {
                    throw new FileNotFoundException(name + " is not on the class path");
                }
                return new String(in.readAllBytes(), StandardCharsets.UTF_8);
            }
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return file.toString();
        }
    }

    /**
     * Values by step, in bounded memory: when there are too many points, each two neighbours become
     * their mean, and from then on a point is the mean of twice as many values.
     */
    static final class Curve {

        private record Points(
                String chart, String name, String unit, int mean, List<Long> x, List<Float> y) {}

        /** More points than pixels show nothing more. */
        static final int CAPACITY = 1024;

        private final String chart;
        private final String name;
        private final String unit;
        private final long[] steps = new long[CAPACITY];
        private final double[] values = new double[CAPACITY];
        private int size;
        private int perPoint = 1;
        private double sum; // of the values of the point that is not complete
        private int summed;
        private long lastStep;

        Curve(String chart, String name, String unit) {
            this.chart = chart;
            this.name = name;
            this.unit = unit;
        }

        void add(long step, double value) {
            sum += value;
            lastStep = step;
            if (++summed == perPoint) {
                steps[size] = step;
                values[size++] = sum / summed;
                sum = 0;
                summed = 0;
                if (size == CAPACITY) {
                    halve();
                }
            }
        }

        private void halve() {
            for (int i = 0; i < CAPACITY / 2; i++) {
                values[i] = (values[2 * i] + values[2 * i + 1]) / 2;
                steps[i] = steps[2 * i + 1];
            }
            size = CAPACITY / 2;
            perPoint *= 2;
        }

        /** Returns the points so far; the last may be of fewer values. */
        JsonObject toJson() {
            List<Long> x = new ArrayList<>();
            List<Float> y = new ArrayList<>();
            for (int i = 0; i < size; i++) {
                x.add(steps[i]);
                y.add(finite(values[i]));
            }
            if (summed > 0) {
                x.add(lastStep);
                y.add(finite(sum / summed));
            }
            return GSON.toJsonTree(new Points(chart, name, unit, perPoint, x, y)).getAsJsonObject();
        }

        private static Float finite(double value) {
            return Double.isFinite(value) ? (float) value : null; // JSON has no NaN: a gap
        }
    }
}
