package io.djltp.examples.generate;

import static io.djltp.examples.train.DeviceOptions.positive;

import ai.djl.MalformedModelException;

import io.djltp.classes.ClassModel;
import io.djltp.examples.BadInputException;
import io.djltp.examples.classes.ClassServer;
import io.djltp.examples.classes.Classifier;
import io.djltp.examples.train.DeviceOptions;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.llm.Embedder;
import io.djltp.llm.Generator;
import io.djltp.llm.LanguageModel;
import io.djltp.llm.serve.ModelServer;
import io.djltp.rank.ParallelConfig;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Model.OptionSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/** Serves a language model with the schema of OpenAI, or a classifier, over HTTP. */
@Command(
        name = "serve",
        description =
                "Serves a language model of a Hugging Face folder, whose weights are cut over"
                        + " ranks, over HTTP with the schema of OpenAI: /v1/chat/completions and"
                        + " /v1/completions, or /v1/embeddings for an encoder. Or serves the"
                        + " classifier of ./tp train: /predict.",
        mixinStandardHelpOptions = true)
public final class ServeCommand implements Callable<Integer> {

    private static final Duration GRACE = Duration.ofSeconds(30);

    private static final Set<String> OF_CLASSES =
            Set.of("--host", "--port", "--name", "--api-key", "--queue");

    @Mixin private ServeOptions options;
    @Spec private CommandSpec spec;

    private final CountDownLatch ended = new CountDownLatch(1);
    private volatile boolean failed = true;
    private volatile boolean stopping;
    private volatile @Nullable AutoCloseable server;
    private String loaded = ""; // what is served

    /** Creates the command; its options are set by the command line. */
    public ServeCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws Exception {
        options.check();
        Thread stop = new Thread(this::stop, "tp-stop");
        Runtime.getRuntime().addShutdownHook(stop);
        try {
            if (ClassModel.isIn(options.model.folder)) {
                serveClasses();
            } else {
                serveModel();
            }
            failed = false;
        } finally {
            ended.countDown();
            try {
                Runtime.getRuntime().removeShutdownHook(stop);
            } catch (IllegalStateException e) {
                // it is running
            }
        }
        return 0;
    }

    private void serveModel() throws Exception {
        try (LanguageModel model = options.model.open()) {
            int ranks = options.model.ranks(model);
            if (model.getConfig().isEncoder() && options.model.adapter != null) {
                throw new BadInputException("--adapter needs a model that generates text");
            }
            if (model.getConfig().isEncoder() && DeviceOptions.processes() > 1) {
                throw new BadInputException("An encoder is served by one process");
            }
            try (Job job = options.model.where.join(ranks)) {
                options.model.where.checkDevices(job, ranks);
                ParallelConfig config = options.model.config(job, ranks);
                if (job == null || job.getProcess() == 0) {
                    serve(model, config, job);
                } else {
                    try (Generator generator = generator(model, config)) {
                        generator.follow();
                    }
                }
            }
        }
    }

    private void serveClasses() throws IOException, InterruptedException {
        if (DeviceOptions.processes() > 1) {
            throw new BadInputException("A classifier is served by one process");
        }
        String others =
                spec.commandLine().getParseResult().matchedOptions().stream()
                        .map(OptionSpec::longestName)
                        .filter(name -> !OF_CLASSES.contains(name))
                        .distinct()
                        .collect(Collectors.joining(", "));
        if (!others.isEmpty()) {
            throw new BadInputException(
                    "%s has a classifier, and %s can be set for language models only: leave it out",
                    options.model.folder, others);
        }
        try (ClassServer opened =
                new ClassServer(
                        options.model.folder,
                        options.host,
                        options.port,
                        options.apiKey,
                        options.queue)) {
            server = opened;
            if (stopping) {
                return; // it was stopped before there was a server to close
            }
            Classifier classifier;
            try {
                classifier = opened.start();
            } catch (IllegalArgumentException | IOException e) {
                throw new BadInputException(e.getMessage(), e);
            }
            loaded =
                    String.format(
                            Locale.ROOT,
                            "%,d classes, %s features",
                            classifier.getClasses(),
                            classifier.getFeatures().name().toLowerCase(Locale.ROOT));
            announce(opened.getPort(), "predict");
            opened.await();
        }
    }

    /** Says where the model is served, unless it is not any more: it was stopped as it loaded. */
    private void announce(int port, String route) {
        if (!stopping) {
            System.out.printf(
                    Locale.ROOT,
                    "Serving %s at http://%s:%d/%s%n%s%n",
                    options.name(),
                    options.host,
                    port,
                    route,
                    loaded);
            System.out.flush();
        }
    }

    /** At SIGTERM and Ctrl-C: lets requests finish, and ends the process with status 0. */
    private void stop() {
        stopping = true;
        closeServer();
        try { // a process that follows waits for the first one
            boolean all = ended.await(2 * GRACE.toSeconds(), TimeUnit.SECONDS);
            System.out.flush();
            Runtime.getRuntime().halt(all && !failed ? 0 : 1);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void closeServer() {
        AutoCloseable running = server;
        try {
            if (running != null) {
                running.close();
            }
        } catch (Exception e) {
            throw new IllegalStateException(e); // no server throws
        }
    }

    private void serve(LanguageModel model, ParallelConfig config, @Nullable Job job)
            throws IOException, MalformedModelException, InterruptedException {
        ModelServer.Builder builder = options.builder();
        if (model.getConfig().isEncoder()) {
            builder.setEmbedder(() -> embedder(config));
        } else {
            builder.setGenerator(() -> generator(model, config));
        }
        try (ModelServer opened = BadInputException.check("", builder::build)) {
            server = opened;
            if (stopping) {
                return;
            }
            Runnable takeBack = job == null ? () -> {} : job.onFailure(e -> closeServer());
            try {
                opened.start();
            } catch (IllegalArgumentException | IOException e) {
                throw new BadInputException(e.getMessage(), e);
            }
            announce(opened.getPort(), "v1");
            opened.await();
            takeBack.run();
        }
        JobFailedException lost = job == null ? null : job.awaitFailure(Duration.ZERO);
        if (lost != null) {
            throw lost;
        }
    }

    private Embedder embedder(ParallelConfig config) throws IOException, MalformedModelException {
        Embedder embedder = Embedder.load(options.model.folder, config);
        loaded =
                String.format(
                        Locale.ROOT,
                        "%d ranks, vectors of %d numbers",
                        config.getRanks(),
                        embedder.getWidth());
        return embedder;
    }

    private Generator generator(LanguageModel model, ParallelConfig config)
            throws IOException, MalformedModelException {
        Generator generator =
                options.model
                        .generator(model, config)
                        .optBatch(options.batch)
                        .optLeader(true)
                        .build();
        loaded =
                String.format(
                        Locale.ROOT,
                        "%d ranks, %s weights by %s, %d texts of %d tokens at a time, %.1f MB a"
                                + " rank",
                        generator.getRanks(),
                        options.model.weights,
                        generator.getKernel(),
                        options.batch,
                        generator.getMaxLength(),
                        generator.getBytes().get(0) / 1e6);
        return generator;
    }

    /** The options of {@link ServeCommand}. */
    private static final class ServeOptions {

        @Mixin private ModelOptions model;

        @Option(
                names = "--host",
                defaultValue = "127.0.0.1",
                description = "The address to listen on; 0.0.0.0 for all (${DEFAULT-VALUE}).")
        private String host;

        @Option(
                names = "--port",
                defaultValue = "8000",
                description = "The port to listen on, 0 for any (${DEFAULT-VALUE}).")
        private int port;

        @Option(
                names = "--name",
                description = "The name of the model in requests (that of the folder).")
        private @Nullable String name;

        @Option(
                names = "--api-key",
                defaultValue = "${env:TP_API_KEY}",
                description =
                        "The key that requests must have. Others on this machine see it in the"
                                + " list of processes: set the variable TP_API_KEY instead.")
        private @Nullable String apiKey;

        @Option(
                names = "--batch",
                defaultValue = "8",
                description = "How many texts are generated at a time (${DEFAULT-VALUE}).")
        private int batch;

        @Option(
                names = "--queue",
                defaultValue = "64",
                description =
                        "How many texts, or requests to a classifier, may wait beside those that"
                                + " are computed; further ones get status 429 (${DEFAULT-VALUE}).")
        private int queue;

        /** Checks what can be checked before the model is opened. */
        void check() {
            positive("--batch", batch);
            model.check();
            builder();
            try {
                if (apiKey == null && !InetAddress.getByName(host).isLoopbackAddress()) {
                    System.err.println(
                            "tp: anyone who reaches "
                                    + host
                                    + " can use the model: set an --api-key");
                }
            } catch (UnknownHostException e) {
                throw new BadInputException("--host " + host + " is not known here", e);
            }
        }

        String name() {
            Path last = model.folder.toAbsolutePath().normalize().getFileName();
            return name != null ? name : last == null ? "model" : last.toString();
        }

        /** Returns the builder of the server, without a model. */
        ModelServer.Builder builder() {
            return BadInputException.check(
                    "",
                    () -> {
                        ModelServer.Builder builder =
                                ModelServer.builder()
                                        .optName(name())
                                        .optHost(host)
                                        .optPort(port)
                                        .optMaxQueue(queue)
                                        .optGrace(GRACE);
                        return apiKey == null ? builder : builder.optApiKey(apiKey);
                    });
        }
    }
}
