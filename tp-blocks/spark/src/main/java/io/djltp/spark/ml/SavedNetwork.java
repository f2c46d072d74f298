package io.djltp.spark.ml;

import ai.djl.util.JsonUtils;

import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.ml.util.DefaultParamsReader;
import org.apache.spark.ml.util.DefaultParamsWriter;
import org.apache.spark.ml.util.MLReader;
import org.apache.spark.ml.util.MLWriter;

import scala.Option;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;

/**
 * A trained network, as it lies in files: DJL's parameters, how the network is built, and the names
 * of its classes.
 *
 * @param plan how it is built
 * @param parameters its parameters in DJL's format
 * @param names the names of the classes, or none
 * @param losses the mean loss of each epoch
 */
record SavedNetwork(NetworkPlan plan, byte[] parameters, String[] names, double[] losses) {

    /** The name of the model, as DJL has it: the beginning of the file of its parameters. */
    static final String NAME = "classifier";

    static final String PARAMETERS = NAME + "-0000.params";
    static final String NETWORK = "network.json";
    static final String NAMES = "synset.txt";
    static final String LOSSES = "losses.json";

    private static final String FOLDER = "djl"; // beside the folder metadata of Spark ML

    /** Returns the files. */
    Map<String, byte[]> files() {
        Map<String, byte[]> files = new TreeMap<>();
        files.put(PARAMETERS, parameters);
        files.put(NETWORK, plan.toJson().getBytes(StandardCharsets.UTF_8));
        files.put(LOSSES, JsonUtils.GSON.toJson(losses).getBytes(StandardCharsets.UTF_8));
        if (names.length > 0) { // of an empty file DJL's translators take no classes for all
            StringBuilder lines = new StringBuilder();
            for (String name : names) {
                // one name a line, as DJL reads it
                lines.append(name.replaceAll("\\R", " ")).append('\n');
            }
            files.put(NAMES, lines.toString().getBytes(StandardCharsets.UTF_8));
        }
        return files;
    }

    /** Makes a network of its files. */
    private static SavedNetwork of(Map<String, byte[]> files) {
        byte[] parameters = needed(files, PARAMETERS);
        String plan = text(needed(files, NETWORK));
        String losses = text(needed(files, LOSSES));
        byte[] names = files.getOrDefault(NAMES, new byte[0]);
        return new SavedNetwork(
                NetworkPlan.ofJson(plan),
                parameters,
                text(names).lines().toArray(String[]::new),
                JsonUtils.GSON.fromJson(losses, double[].class));
    }

    private static byte[] needed(Map<String, byte[]> files, String name) {
        byte[] content = files.get(name);
        if (content == null) {
            throw new IllegalArgumentException(
                    ("The saved model has no file %s/%s: copy the model's folder again, or save"
                                    + " the model again")
                            .formatted(FOLDER, name));
        }
        return content;
    }

    private static String text(byte[] content) {
        return new String(content, StandardCharsets.UTF_8);
    }

    /** Writes a model by Spark ML's conventions. */
    static final class Writer extends MLWriter {

        private final ParallelClassificationModel model;

        Writer(ParallelClassificationModel model) {
            this.model = model;
        }

        /** {@inheritDoc} */
        @Override
        public void saveImpl(String path) {
            DefaultParamsWriter.saveMetadata(model, path, sparkSession(), Option.empty());
            Path folder = new Path(path, FOLDER);
            try {
                FileSystem system =
                        folder.getFileSystem(sparkSession().sparkContext().hadoopConfiguration());
                for (Map.Entry<String, byte[]> file : model.network().files().entrySet()) {
                    try (OutputStream out = system.create(new Path(folder, file.getKey()))) {
                        out.write(file.getValue());
                    }
                }
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
    }

    /** Reads a model. */
    static final class Reader extends MLReader<ParallelClassificationModel> {

        /** {@inheritDoc} */
        @Override
        public ParallelClassificationModel load(String path) {
            DefaultParamsReader.Metadata metadata =
                    DefaultParamsReader.loadMetadata(
                            path, sparkSession(), ParallelClassificationModel.class.getName());
            Path folder = new Path(path, FOLDER);
            Map<String, byte[]> files = new TreeMap<>();
            try {
                FileSystem system =
                        folder.getFileSystem(sparkSession().sparkContext().hadoopConfiguration());
                for (FileStatus file : system.listStatus(folder)) {
                    try (InputStream in = system.open(file.getPath())) {
                        files.put(file.getPath().getName(), in.readAllBytes());
                    }
                }
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
            ParallelClassificationModel model =
                    new ParallelClassificationModel(metadata.uid(), of(files));
            metadata.getAndSetParams(model, Option.empty());
            return model;
        }
    }
}
