package io.djltp.spark.ml;

import ai.djl.util.JsonUtils;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.spark.ml.util.DefaultParamsReader;
import org.apache.spark.ml.util.DefaultParamsWriter;
import org.apache.spark.ml.util.MLReader;
import org.apache.spark.ml.util.MLWriter;
import org.json4s.AsJsonInput;
import org.json4s.JObject;
import org.json4s.jackson.JsonMethods$;

import scala.Option;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.TreeMap;

/** A model by Spark ML's conventions: the folder metadata, and the network in the folder djl. */
final class NetworkFiles {

    private static final String FOLDER = "djl";
    private static final String MARKS = "files"; // in the metadata

    private NetworkFiles() {}

    /** Writes a model. */
    static final class Writer extends MLWriter {

        private final ParallelClassificationModel model;

        Writer(ParallelClassificationModel model) {
            this.model = model;
        }

        /** {@inheritDoc} */
        @Override
        public void saveImpl(String path) {
            Map<String, byte[]> files = model.network().files();
            DefaultParamsWriter.saveMetadata(
                    model, path, sparkSession(), Option.apply(marks(files)));
            Configuration conf = sparkSession().sparkContext().hadoopConfiguration();
            try {
                for (Map.Entry<String, byte[]> file : files.entrySet()) {
                    Path to = new Path(new Path(path, FOLDER), file.getKey());
                    try (FSDataOutputStream out = to.getFileSystem(conf).create(to)) {
                        out.write(file.getValue());
                    }
                }
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        private static JObject marks(Map<String, byte[]> files) {
            Map<String, FileMark> marks = new TreeMap<>();
            files.forEach((name, content) -> marks.put(name, FileMark.of(content)));
            String json = JsonUtils.GSON.toJson(Map.of(MARKS, marks));
            return (JObject)
                    JsonMethods$.MODULE$.parse(json, false, true, AsJsonInput.stringAsJsonInput());
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
            Configuration conf = sparkSession().sparkContext().hadoopConfiguration();
            Map<String, FileMark> marks =
                    JsonUtils.GSON.fromJson(metadata.metadataJson(), Marks.class).files();
            if (marks == null) {
                throw new IllegalArgumentException(
                        "The metadata of "
                                + path
                                + " do not say which files a model has: save the model again, with"
                                + " this version");
            }
            Map<String, byte[]> files = new TreeMap<>();
            try {
                for (Map.Entry<String, FileMark> file : marks.entrySet()) {
                    Path from = new Path(new Path(path, FOLDER), file.getKey());
                    byte[] content = file.getValue().read(from, conf);
                    files.put(file.getKey(), content);
                }
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
            ParallelClassificationModel model =
                    new ParallelClassificationModel(metadata.uid(), SavedNetwork.of(files));
            metadata.getAndSetParams(model, Option.empty());
            return model;
        }
    }

    /** The part of the metadata that tells of the files. */
    private record Marks(Map<String, FileMark> files) {}
}
