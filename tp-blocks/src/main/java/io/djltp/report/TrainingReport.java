package io.djltp.report;

import ai.djl.training.Trainer;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;

import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;
import io.djltp.training.ParallelTrainer;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
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

    private static final String TIME = "time";

    private final ReportPage page;
    private final String title;
    private final Map<String, String> facts;
    private final long interval;
    private final Map<String, Curve> curves = new LinkedHashMap<>();
    private final List<RankCalls> calls = new ArrayList<>();
    private final List<Map<String, Long>> totals = new ArrayList<>();
    private final Set<String> kinds = new LinkedHashSet<>();
    private JsonArray ranks = new JsonArray();
    private JsonArray picture = new JsonArray();
    private String mesh = "";
    private long split; // steps whose time was split
    private long nextPage = System.nanoTime();
    private boolean started;
    private boolean failed;
    private boolean closed;

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
            calls.add(new RankCalls(context.getWorld().getRecorder()));
            totals.add(new LinkedHashMap<>());
        }
        mesh = pool.getContext(0).getMesh().toString();
        picture = Shards.picture(trainer);
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
            ranks = new JsonArray();
            int i = 0;
            for (Shards.Held held : Shards.held(parallel)) {
                JsonObject rank = new JsonObject();
                rank.addProperty("rank", parallel.getRanks().getContext(i++).getRank());
                rank.addProperty("weights", held.weights());
                rank.addProperty("state", held.state());
                ranks.add(rank);
            }
        }
    }

    private void write(boolean running) {
        JsonObject data = new JsonObject();
        data.addProperty("title", title);
        data.addProperty("running", running);
        data.addProperty("early", isEarly());
        data.addProperty("interval", interval / 1e9);
        data.addProperty("written", Instant.now().toString());
        data.addProperty("steps", getStep());
        data.addProperty("mesh", mesh);
        JsonObject named = new JsonObject();
        facts.forEach(named::addProperty);
        data.add("facts", named);
        JsonArray all = new JsonArray();
        curves.values().forEach(curve -> all.add(curve.toJson()));
        data.add("curves", all);
        for (int i = 0; i < ranks.size(); i++) {
            JsonObject times = new JsonObject();
            totals.get(i)
                    .forEach(
                            (what, nanos) ->
                                    times.addProperty(what, nanos / 1e6 / Math.max(1, split)));
            ranks.get(i).getAsJsonObject().add("times", times);
        }
        data.add("ranks", ranks);
        data.add("parameters", picture);
        try {
            page.write(data, running);
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
}
