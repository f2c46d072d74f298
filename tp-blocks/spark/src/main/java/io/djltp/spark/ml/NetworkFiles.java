package io.djltp.spark.ml;

import ai.djl.util.JsonUtils;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFileSystem;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.ml.util.DefaultParamsReader;
import org.apache.spark.ml.util.DefaultParamsWriter;
import org.apache.spark.ml.util.MLReader;
import org.apache.spark.ml.util.MLWriter;
import org.json4s.AsJsonInput;
import org.json4s.JObject;
import org.json4s.jackson.JsonMethods$;

import scala.Option;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.TreeMap;
import java.util.zip.CRC32C;

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

    /**
     * What tells a file of a saved model from one that was cut or changed since.
     *
     * @param bytes its length
     * @param crc32c its checksum
     */
    private record FileMark(long bytes, String crc32c) {

        private static final String REMEDY =
                "Copy the model's folder again, or save the model again";

        static FileMark of(byte[] content) {
            CRC32C sum = new CRC32C();
            sum.update(content);
            return new FileMark(content.length, Long.toHexString(sum.getValue()));
        }

        /**
         * Reads a file and checks that it is the one that was written.
         *
         * @throws IllegalStateException if it is missing, was cut or changed
         * @throws IOException if it cannot be read for another reason
         */
        byte[] read(Path file, Configuration conf) throws IOException {
            byte[] content = readAll(file, conf);
            FileMark own = of(content);
            if (!own.equals(this)) {
                throw new IllegalStateException(
                        ("The file %s is not the one that was saved: it has %d bytes (CRC-32C %s),"
                                        + " and %d (%s) were written. "
                                        + REMEDY)
                                .formatted(file, own.bytes, own.crc32c, bytes, crc32c));
            }
            return content;
        }

        private byte[] readAll(Path file, Configuration conf) throws IOException {
            FileSystem system = file.getFileSystem(conf);
            if (system instanceof ChecksumFileSystem) { // its .crc files would be told in its words
                system = ((ChecksumFileSystem) system).getRawFileSystem();
            }
            try {
                byte[] content = new byte[Math.toIntExact(system.getFileStatus(file).getLen())];
                try (FSDataInputStream in = system.open(file)) {
                    in.readFully(content);
                }
                return content;
            } catch (FileNotFoundException e) {
                throw new IllegalStateException(
                        "The file %s is missing, to which %d bytes were written. %s"
                                .formatted(file, bytes, REMEDY),
                        e);
            }
        }
    }
}
