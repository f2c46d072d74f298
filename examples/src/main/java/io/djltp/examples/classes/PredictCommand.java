package io.djltp.examples.classes;

import static io.djltp.examples.train.DeviceOptions.positive;

import ai.djl.modality.Classifications;
import ai.djl.modality.Classifications.Classification;

import com.google.gson.stream.JsonWriter;

import io.djltp.classes.ClassData;
import io.djltp.classes.ClassData.Features;
import io.djltp.classes.ClassData.Format;
import io.djltp.classes.ClassData.Row;
import io.djltp.classes.ClassNames;
import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.train.DataOptions;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.stream.Stream;

/** Asks a trained classifier. */
@Command(
        name = "predict",
        description =
                "Prints the best classes of texts, or of the rows of a file, with their scores.",
        mixinStandardHelpOptions = true)
public final class PredictCommand implements Callable<Integer> {

    private static final int BATCH = 256;

    @Parameters(index = "0", paramLabel = "DIR", description = "Folder of the trained model.")
    private Path folder;

    @Parameters(index = "1..*", arity = "0..*", paramLabel = "TEXT", description = "The texts.")
    private List<String> texts = List.of();

    @Option(
            names = "--file",
            description = "A file of rows: a text a line, or as the --data of the training.")
    private @Nullable Path file;

    @Option(
            names = "--format",
            description = "The format of --file, any of ${COMPLETION-CANDIDATES}.")
    private @Nullable Format format;

    @Option(
            names = "--field",
            description = "The name of the field of the texts, of CSV, TSV and JSON lines.")
    private @Nullable String field;

    @Option(
            names = "--top",
            defaultValue = "5",
            description = "How many classes are printed (${DEFAULT-VALUE}).")
    private int top;

    @Option(names = "--json", description = "A file for the classes and scores, in place of text.")
    private @Nullable Path json;

    /** Creates the command; its options are set by the command line. */
    public PredictCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        positive("--top", top);
        if (texts.isEmpty() == (file == null)) {
            throw new BadInputException(
                    "Say what to predict: texts, or --file FILE, and not both of them");
        }
        DataOptions.checkFile("--file", file);
        JsonFile.check("--json", json);
        try (Classifier classifier = Classifier.load(folder, top);
                Output output = new Output(classifier.isProbability())) {
            if (file != null) {
                predict(classifier, file, output);
            } else if (classifier.getFeatures() != Features.TEXT) {
                throw new BadInputException(
                        "%s has a classifier of %s features: give rows with --file",
                        folder, classifier.getFeatures());
            } else {
                predict(classifier, output);
            }
        }
        return 0;
    }

    private void predict(Classifier classifier, Output output) throws IOException {
        classifier.predict(List.of(Row.ofText(texts.get(0)))); // takes memory and loads code
        for (String text : texts) {
            long begin = System.nanoTime();
            Classifications best = classifier.predict(List.of(Row.ofText(text))).get(0);
            double milliseconds = (System.nanoTime() - begin) / 1e6;
            String time = String.format(Locale.ROOT, " (%.1f ms)", milliseconds);
            output.write(text, time, best);
        }
    }

    private void predict(Classifier classifier, Path rows, Output output) throws IOException {
        try (Stream<Row> all = BadInputException.check("--file: ", () -> open(classifier, rows))) {
            List<Row> batch = new ArrayList<>();
            for (Iterator<Row> each = all.iterator(); each.hasNext(); ) {
                batch.add(each.next());
                if (batch.size() == BATCH || !each.hasNext()) {
                    List<Classifications> best =
                            BadInputException.check("--file: ", () -> classifier.predict(batch));
                    for (int i = 0; i < best.size(); i++) {
                        Row row = batch.get(i);
                        String name = row.text() == null ? "row " + row.number() : row.text();
                        output.write(name, "", best.get(i));
                    }
                    batch.clear();
                }
            }
        }
    }

    private Stream<Row> open(Classifier classifier, Path rows) {
        try {
            ClassData.Builder builder = ClassData.builder(rows);
            builder.optClasses(ClassNames.of(List.of(""))); // whatever labels there are
            boolean plain =
                    field == null && !rows.toString().matches("(?i).*\\.(csv|tsv|jsonl?)(\\.gz)?");
            if (format != null) {
                builder.optFormat(format);
            } else if (classifier.getFeatures() == Features.TEXT && plain) {
                builder.optFormat(Format.FASTTEXT); // whose lines may have no label
            }
            if (field != null) {
                builder.optFields(field, null);
            }
            ClassData data = builder.build();
            if (data.getFeatures() != classifier.getFeatures()) {
                throw new BadInputException(
                        "--file %s has %s features, and the classifier in %s has %s ones",
                        rows, data.getFeatures(), folder, classifier.getFeatures());
            }
            return data.stream();
        } catch (IOException e) {
            throw new BadInputException("--file " + rows + " cannot be read: " + e.getMessage(), e);
        }
    }

    /** Where the classes go. */
    private final class Output implements AutoCloseable {

        private final PrintStream out = System.out;
        private final boolean shares;
        private final @Nullable JsonWriter writer;

        Output(boolean shares) throws IOException {
            this.shares = shares;
            writer = json == null ? null : new JsonWriter(Files.newBufferedWriter(json));
            if (writer != null) {
                writer.setIndent("  ");
                writer.beginArray();
            }
        }

        void write(String input, String more, Classifications best) throws IOException {
            if (writer == null) {
                out.println(input + more);
            } else {
                writer.beginObject().name("input").value(input).name("labels").beginArray();
            }
            for (Classification each : best.<Classification>items()) {
                double score = each.getProbability();
                if (writer != null) {
                    writer.beginObject().name("label").value(each.getClassName());
                    writer.name("score").value(score).endObject();
                } else if (shares) {
                    out.printf(Locale.ROOT, "  %6.2f %%  %s%n", 100 * score, each.getClassName());
                } else {
                    out.printf(Locale.ROOT, "  %8.3f  %s%n", score, each.getClassName());
                }
            }
            if (writer != null) {
                writer.endArray().endObject();
            }
        }

        @Override
        public void close() throws IOException {
            if (writer != null) {
                writer.endArray().close();
            }
        }
    }
}
