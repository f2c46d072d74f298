package io.djltp.report;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingResult;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;

import com.google.gson.Gson;
import com.google.gson.JsonObject;

import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.files.SideFolder;
import io.djltp.internal.optimizer.LossScale;
import io.djltp.internal.optimizer.OptimizerState;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.StepParticipant;
import io.djltp.internal.report.SystemMemory;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.training.ParallelTrainer;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.IntStream;

/**
 * A listener that shows a training while it runs: as a page of HTML with curves of the loss, of
 * evaluators and of the throughput, what each rank holds, where the time of a step goes, and how
 * the parameters are cut; and its curves to TensorBoard. The page is one file that needs no other;
 * a browser that shows it shows the next one some seconds later. In a job of several processes the
 * process of rank 0 alone writes.
 *
 * <pre>{@code
 * TrainingReport report = TrainingReport.builder().optPage(Path.of("run.html")).build();
 * config.addTrainingListeners(TrainingListener.Defaults.logging()).addTrainingListeners(report);
 * }</pre>
 *
 * <p>It comes after DJL's listeners, which compute what evaluators have found. In a loop that
 * notifies no listeners, {@link #addStep} takes their place.
 *
 * <p>Times are those that the threads of the ranks take: on a GPU, which computes while its thread
 * goes on, only the time of the step is what it seems. What cannot be written is a warning, once,
 * and no end of the training.
 */
public final class TrainingReport extends TrainingListenerAdapter implements AutoCloseable {
    private static final Logger logger = LoggerFactory.getLogger(TrainingReport.class);

    /** Writes a less-than sign as an escape: no text can end the script that the data lie in. */
    private static final Gson GSON = new Gson();

    /** The build of uPlot that is a script and needs no other. */
    private static final String CHARTS = "/META-INF/resources/webjars/uplot/1.6.30/dist/";

    private static final int INTERVAL = 5; // seconds between two pages
    private static final int MOST_PARAMETERS = 200; // more rows nobody reads
    private static final String LOSS = "loss";
    private static final String EVALUATION = "evaluation";
    private static final String TIME = "time";

    private final @Nullable Path page;
    private final @Nullable Path eventFolder;
    private final String title;
    private final Map<String, String> facts;
    private final Map<String, Curve> curves = new LinkedHashMap<>();
    private @Nullable EventFile events;
    private @Nullable TimeSplit split;
    private final List<Map<String, Long>> totals = new ArrayList<>(); // of the splits, by rank
    private long splits;
    private List<RankRow> ranks = List.of();
    private List<ParameterRow> picture = List.of();
    private String mesh = "";
    private long step;
    private long last; // when the last step ended, or the clock started again; 0: no step yet
    private long nextPage = System.nanoTime();
    private int epochs; // that DJL had counted at the last batch
    private boolean withinEpoch; // a batch has come since the last epoch
    private boolean validated; // a batch of a validation set has
    private boolean early;
    private boolean diverged; // a loss that is not a number was seen
    private boolean pageFailed;
    private boolean eventsFailed;
    private boolean closed;

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
        page = builder.page;
        eventFolder = builder.events;
        title = builder.title;
        facts = new LinkedHashMap<>(builder.facts);
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Goes on with a training that was resumed from a checkpoint. The page shows the losses;
     * TensorBoard has them in the file of the run before.
     *
     * @param losses the losses of the steps that were done before, maybe none
     */
    public void resume(List<Float> losses) {
        for (float loss : losses) {
            curve(LOSS, "training", "").add(++step, loss);
        }
    }

    /**
     * Adds a figure of the caller's own, at the last step.
     *
     * @param trainer the trainer
     * @param name its name
     * @param value its value
     */
    public void add(Trainer trainer, String name, double value) {
        if (isFirst(trainer)) {
            accept(EVALUATION, name, "", value);
        }
    }

    /**
     * Notes that a training step has ended, in a loop that notifies no listeners.
     *
     * @param trainer the trainer
     * @param loss the loss of the step
     * @param rows the rows of the batch over all ranks
     */
    public void addStep(Trainer trainer, double loss, long rows) {
        if (!isFirst(trainer)) {
            return;
        }
        double seconds = last == 0 ? Double.NaN : (System.nanoTime() - last) / 1e9;
        step++;
        diverged |= Double.isNaN(loss);
        accept(LOSS, "training", "", loss);
        if (seconds > 0) {
            accept("throughput", "rows", "rows/s", rows / seconds);
        }
        if (trainer instanceof ParallelTrainer parallel) {
            addFigures(parallel, seconds);
        }
        if (page != null && System.nanoTime() >= nextPage) {
            SystemMemory.resident()
                    .ifPresent(bytes -> accept("memory", "process", "MiB", bytes / 0x1p20));
            if (trainer instanceof ParallelTrainer parallel) {
                ranks = parallel.getRanks().run(context -> held(parallel, context));
            }
            write(page, true);
            nextPage = System.nanoTime() + INTERVAL * 1_000_000_000L;
        }
        last = System.nanoTime();
    }

    private void addFigures(ParallelTrainer trainer, double seconds) {
        LossScale scale = trainer.getState().getLossScale();
        if (scale.isUsed()) {
            accept("loss scale", "loss scale", "", scale.get());
            long skipped = scale.getState().skippedSteps();
            accept("steps left out", "steps left out", "", skipped);
        }
        if (page == null) {
            return;
        }
        if (split == null) {
            split = new TimeSplit(trainer.getRanks());
            IntStream.range(0, trainer.getRanks().size())
                    .forEach(i -> totals.add(new LinkedHashMap<>()));
            mesh = trainer.getRanks().getContext(0).getMesh().toString();
            picture = picture(trainer);
            return;
        }
        List<Map<String, Long>> taken = split.take((long) (seconds * 1e9));
        if (seconds > 0) {
            splits++;
            for (int i = 0; i < taken.size(); i++) {
                Map<String, Long> total = totals.get(i);
                taken.get(i).forEach((what, nanos) -> total.merge(what, nanos, Long::sum));
            }
            for (String kind : totals.get(0).keySet()) { // also of other steps: a mean is of all
                accept(TIME, kind, "ms", taken.get(0).getOrDefault(kind, 0L) / 1e6);
            }
            accept(TIME, "step", "ms", seconds * 1e3);
        }
    }

    /**
     * Starts the clock of the next step, after something that is no training: an evaluation that a
     * listener makes, for example, which comes after this one.
     *
     * @param trainer the trainer
     */
    public void restartClock(Trainer trainer) {
        if (isFirst(trainer) && last != 0) {
            if (split != null) {
                split.take(0); // that of an evaluation is no step's
            }
            last = System.nanoTime();
        }
    }

    /**
     * Notes that the training ends before it was to: a loop that notifies no listeners was stopped,
     * or has failed. To be called before {@link #close()}.
     */
    public void endEarly() {
        early = true;
    }

    private static boolean isFirst(Trainer trainer) {
        return !(trainer instanceof ParallelTrainer parallel)
                || parallel.getRanks().getContext(0).getRank() == 0;
    }

    private void accept(String chart, String name, String unit, double value) {
        accept(chart, name, unit, step, value);
    }

    private void accept(String chart, String name, String unit, long at, double value) {
        curve(chart, name, unit).add(at, value);
        if (eventFolder == null || eventsFailed || closed) {
            return;
        }
        try {
            events = events == null ? new EventFile(eventFolder) : events;
            events.add(chart + '/' + name, at, value);
        } catch (IOException e) {
            eventsFailed = true;
            logger.warn("The figures cannot be written to {}: {}", eventFolder, e.toString());
        }
    }

    private Curve curve(String chart, String name, String unit) {
        return curves.computeIfAbsent(chart + '/' + name, key -> new Curve(chart, name, unit));
    }

    /** {@inheritDoc} */
    @Override
    public void onTrainingBatch(Trainer trainer, BatchData batchData) {
        if (!isFirst(trainer)) {
            return;
        }
        BatchResult result = BatchResult.of(trainer, batchData);
        if (step == 0 && trainer instanceof ParallelTrainer parallel) {
            step = parallel.getState().getStep(); // of a training that was resumed
        }
        withinEpoch = true;
        epochs = trainer.getTrainingResult().getEpoch();
        addStep(trainer, result.loss(), result.rows());
    }

    /** {@inheritDoc} */
    @Override
    public void onValidationBatch(Trainer trainer, BatchData batchData) {
        validated = true;
        restartClock(trainer);
    }

    /** {@inheritDoc} */
    @Override
    public void onEpoch(Trainer trainer) {
        withinEpoch = false;
        Map<String, Float> evaluations = trainer.getTrainingResult().getEvaluations();
        if (!isFirst(trainer) || evaluations == null) {
            return;
        }
        evaluations.forEach((name, value) -> addEvaluation(trainer, name, value));
        validated = false;
        restartClock(trainer);
    }

    private void addEvaluation(Trainer trainer, String name, Float value) {
        boolean validation = name.startsWith("validate_");
        if (value == null || validation && !validated) {
            return; // DJL has a NaN there
        }
        String evaluator = name.replaceFirst("^(train|validate)_", "");
        if (!evaluator.equals(trainer.getLoss().getName())) {
            if (!evaluator.equals(LOSS)) { // which DJL's result has a second time
                accept(EVALUATION, name.replace('_', ' '), "", value);
            }
        } else if (validation) {
            accept(LOSS, "validation", "", value);
        }
    }

    /**
     * {@inheritDoc} A listener that comes before this one may have ended the training: its last
     * epoch, or a loss that is not a number, is taken now.
     */
    @Override
    public void onTrainingEnd(Trainer trainer) {
        TrainingResult result = trainer.getTrainingResult();
        if (isFirst(trainer) && step > 0) {
            if (withinEpoch && result.getEpoch() > epochs) {
                onEpoch(trainer);
            }
            if (!diverged && isDiverged(trainer)) {
                withinEpoch = true;
                accept(LOSS, "training", "", step + 1, Double.NaN);
            }
        }
        close();
    }

    /**
     * Returns whether the loss of the last batch was not a number. That of no batch is none either:
     * after an epoch another evaluator has to show that there was one.
     */
    private boolean isDiverged(Trainer trainer) {
        try {
            return isNaN(trainer.getLoss())
                    && (withinEpoch
                            || trainer.getEvaluators().stream().anyMatch(other -> !isNaN(other)));
        } catch (IllegalArgumentException e) {
            return false; // no listener of DJL evaluates
        }
    }

    private static boolean isNaN(Evaluator evaluator) {
        return Float.isNaN(evaluator.getAccumulator(EvaluatorTrainingListener.TRAIN_ALL));
    }

    /** Looks at what takes memory. */
    private static RankRow held(ParallelTrainer trainer, ParallelContext context) {
        int rank = context.getLocalIndex();
        RankParameterStore store = trainer.getParameterStore(rank);
        long weights = 0;
        for (Parameter parameter : trainer.getState().getParameters().getAll()) {
            weights += store.contains(parameter) ? bytes(store.getHeld(parameter)) : 0;
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
        return new RankRow(context.getRank(), weights, state, new LinkedHashMap<>());
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
        for (Parameter parameter : parameters.getAll().stream().limit(MOST_PARAMETERS).toList()) {
            ShardingStrategy strategy = parameters.getStrategy(parameter);
            String name = parameters.nameOf(parameter);
            Shape shape = parameter.getShape();
            if (strategy == null || ranks == 1) {
                rows.add(new ParameterRow(name, shape.toString(), -1, 0, List.of()));
            } else {
                int axis = strategy.axis(shape);
                Cut cut = strategy.cut(shape, ranks);
                List<List<long[]>> ranges =
                        IntStream.range(0, cut.getRanks())
                                .mapToObj(cut::getRanges)
                                .map(
                                        each ->
                                                each.stream()
                                                        .map(r -> new long[] {r.start(), r.end()})
                                                        .toList())
                                .toList();
                rows.add(new ParameterRow(name, shape.toString(), axis, shape.get(axis), ranges));
            }
        }
        return rows;
    }

    /** Replaces the page: whoever opens it gets the old one or the new one. */
    private void write(Path to, boolean running) {
        for (int i = 0; i < ranks.size(); i++) {
            Map<String, Double> times = ranks.get(i).times();
            totals.get(i)
                    .forEach((what, nanos) -> times.put(what, nanos / 1e6 / Math.max(1, splits)));
        }
        Map<String, Object> data = new LinkedHashMap<>(); // what the script of the page reads
        data.put("title", title);
        data.put("running", running);
        data.put("early", early || withinEpoch);
        data.put("interval", INTERVAL);
        data.put("written", Instant.now().toString());
        data.put("steps", step);
        data.put("mesh", mesh);
        data.put("facts", facts);
        data.put("curves", curves.values().stream().map(Curve::toJson).toList());
        data.put("ranks", ranks);
        data.put("parameters", picture);
        String refresh = "<meta http-equiv=\"refresh\" content=\"" + INTERVAL + "\">";
        try (SideFolder side = SideFolder.in(Objects.requireNonNull(to.getParent()))) {
            String text =
                    resource("report.html")
                            .replace("<!-- refresh -->", running ? refresh : "")
                            .replace("/* charts.css */", resource(CHARTS + "uPlot.min.css"))
                            .replace("/* report.css */", resource("report.css"))
                            .replace("/* report.js */", resource("report.js"))
                            .replace("/* charts.js */", resource(CHARTS + "uPlot.iife.min.js"))
                            .replace("/* data */", GSON.toJson(data));
            Files.writeString(side.resolve(to.getFileName().toString()), text);
            side.replace();
            pageFailed = false;
        } catch (IOException e) {
            if (!pageFailed) {
                logger.warn("The report {} cannot be written: {}", to, e.toString());
            }
            pageFailed = true;
        }
    }

    private static String resource(String name) throws IOException {
        try (InputStream in = TrainingReport.class.getResourceAsStream(name)) {
            if (in == null) {
                throw new FileNotFoundException(name + " is not on the class path");
            }
            return new String(in.readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    /** Writes what there is to be written at the end. Figures that come later are none. */
    @Override
    public void close() {
        if (!closed && last != 0 && page != null) {
            write(page, false);
        }
        if (split != null) {
            split.close();
        }
        try {
            if (events != null) {
                events.close();
            }
        } catch (IOException e) {
            logger.warn("The figures in {} may not be complete: {}", eventFolder, e.toString());
        }
        closed = true;
    }

    /** Builds a {@link TrainingReport}. */
    public static final class Builder {
        private @Nullable Path page;
        private @Nullable Path events;
        private String title = "Training";
        private final Map<String, String> facts = new LinkedHashMap<>();

        private Builder() {}

        /**
         * Sets the file of the page.
         *
         * @param htmlFile the file, which is replaced if it is there; {@code null} for no page
         * @return this builder
         */
        public Builder optPage(@Nullable Path htmlFile) {
            page = htmlFile == null ? null : htmlFile.toAbsolutePath();
            return this;
        }

        /**
         * Sets a folder for a file of events. {@code tensorboard --logdir FOLDER} shows them while
         * the training runs; a folder in which each training has a folder of its own compares them.
         *
         * @param folder the folder, which need not be there; {@code null} for no events
         * @return this builder
         */
        public Builder optTensorBoard(@Nullable Path folder) {
            events = folder;
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
         * @throws IllegalArgumentException if the page cannot be written
         */
        public TrainingReport build() {
            if (page != null) {
                Path folder = page.getParent();
                Errors.check(
                        !Files.isDirectory(page), "The report %s is a folder: name a file", page);
                if (folder == null || !Files.isDirectory(folder) || !Files.isWritable(folder)) {
                    throw Errors.argument(
                            "The report %s cannot be written: %s must be a folder that is there"
                                    + " and can be written to",
                            page, folder);
                }
            }
            return new TrainingReport(this);
        }
    }

    /**
     * Values by step, in bounded memory: when there are too many points, each two neighbours become
     * their mean, and from then on a point is the mean of twice as many values.
     */
    static final class Curve {

        /** More points than pixels show nothing more. */
        static final int CAPACITY = 1024;

        private final String chart;
        private final String name;
        private final String unit;
        private final List<Long> steps = new ArrayList<>();
        private final List<Double> values = new ArrayList<>();
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
                steps.add(step);
                values.add(sum / summed);
                sum = 0;
                summed = 0;
                if (steps.size() == CAPACITY) {
                    halve();
                }
            }
        }

        private void halve() {
            for (int i = 0; i < CAPACITY / 2; i++) {
                values.set(i, (values.get(2 * i) + values.get(2 * i + 1)) / 2);
                steps.set(i, steps.get(2 * i + 1));
            }
            values.subList(CAPACITY / 2, CAPACITY).clear();
            steps.subList(CAPACITY / 2, CAPACITY).clear();
            perPoint *= 2;
        }

        /** Returns the points so far; the last may be of fewer values. */
        JsonObject toJson() {
            List<Long> x = new ArrayList<>(steps);
            List<Float> y = new ArrayList<>();
            values.forEach(value -> y.add(finite(value)));
            if (summed > 0) {
                x.add(lastStep);
                y.add(finite(sum / summed));
            }
            JsonObject json = new JsonObject();
            json.addProperty("chart", chart);
            json.addProperty("name", name);
            json.addProperty("unit", unit);
            json.addProperty("mean", perPoint);
            json.add("x", GSON.toJsonTree(x));
            json.add("y", GSON.toJsonTree(y));
            return json;
        }

        private static @Nullable Float finite(double value) {
            return Double.isFinite(value) ? (float) value : null; // JSON has no NaN: a gap
        }
    }
}
