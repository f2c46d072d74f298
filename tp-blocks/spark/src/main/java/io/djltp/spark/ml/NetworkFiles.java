package io.djltp.spark.ml;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.ml.util.DefaultParamsReader;
import org.apache.spark.ml.util.DefaultParamsWriter;
import org.apache.spark.ml.util.MLReader;
import org.apache.spark.ml.util.MLWriter;

import scala.Option;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** A model by Spark ML's conventions: the folder metadata, and the network in the folder djl. */
final class NetworkFiles {

    private static final String FOLDER = "djl";

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
            DefaultParamsWriter.saveMetadata(model, path, sparkSession());
            Configuration conf = sparkSession().sparkContext().hadoopConfiguration();
            try {
                for (Map.Entry<String, byte[]> file : model.network().files().entrySet()) {
                    Path to = new Path(new Path(path, FOLDER), file.getKey());
                    try (FSDataOutputStream out = to.getFileSystem(conf).create(to)) {
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
            Configuration conf = sparkSession().sparkContext().hadoopConfiguration();
            Map<String, byte[]> files = new TreeMap<>();
            try {
                for (String name :
                        List.of(
                                SavedNetwork.PARAMETERS,
                                SavedNetwork.NETWORK,
                                SavedNetwork.NAMES,
                                SavedNetwork.LOSSES)) {
                    Path from = new Path(new Path(path, FOLDER), name);
                    FileSystem system = from.getFileSystem(conf);
                    byte[] bytes = new byte[Math.toIntExact(system.getFileStatus(from).getLen())];
                    try (FSDataInputStream in = system.open(from)) {
                        in.readFully(bytes);
                    }
                    files.put(name, bytes);
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
}
