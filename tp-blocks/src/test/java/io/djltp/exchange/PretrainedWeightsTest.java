package io.djltp.exchange;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import io.djltp.parameters.SlicedInitializer;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.ArrayAssert;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;

/** Weights that PyTorch and Hugging Face's safetensors have written, on any number of ranks. */
public class PretrainedWeightsTest {

    @DataProvider
    public static Object[][] models() {
        return new Object[][] {
            {"bert", SmallModels.bert(false), "bert.safetensors", NameMapping.bert()},
            {"bert", SmallModels.bert(true), "bert.safetensors", NameMapping.bert()},
            {"llama", SmallModels.llama(false), "model.safetensors.index.json", SmallModels.LLAMA},
            {"llama", SmallModels.llama(true), "model.safetensors.index.json", SmallModels.LLAMA},
        };
    }

    @Test(dataProvider = "models", timeOut = 60_000)
    public void outputsAreThoseOfPyTorch(String name, Block block, String file, NameMapping mapping)
            throws Exception {
        float[] expected = SmallModels.reference(name);
        for (int ranks = 0; ranks <= 4; ranks++) {
            try (Model model = Model.newInstance(name);
                    PretrainedWeights weights =
                            PretrainedWeights.builder()
                                    .setPath(SmallModels.file(file))
                                    .setMapping(mapping)
                                    .build()) {
                model.setBlock(block);
                Shape[] inputs = SmallModels.inputs(block);
                if (ranks == 0) {
                    weights.load(model, inputs);
                } else {
                    weights.bind(model, inputs);
                    Assert.assertEquals(weights.getBytesRead(), 0, "before they are needed");
                }
                float[] actual = SmallModels.predict(model, ranks);
                ArrayAssert.assertClose(actual, expected, 1e-5, name + " on " + ranks + " ranks");
                Assert.assertEquals(weights.getBytesRead(), bytes(name, ranks), "bytes read");
                block.getParameters().values().forEach(Parameter::close);
            }
        }
    }

    /**
     * All ranks together read each byte once, but for the key/value heads that two of them use:
     * three heads of [4, 24] of keys and as many of values in bfloat16.
     */
    private static long bytes(String model, int ranks) throws Exception {
        try (WeightFiles files =
                WeightFiles.open(
                        SmallModels.file(
                                model.equals("bert")
                                        ? "bert.safetensors"
                                        : "model.safetensors.index.json"))) {
            long all = 0;
            for (String name : files.names()) {
                all += name.endsWith("position_ids") ? 0 : files.get(name).bytes();
            }
            if (model.equals("bert")) {
                return all;
            }
            all -= 2L * 3 * 24 * Short.BYTES; // the spare rows of embedding and head
            // 6 query heads on 2 ranks: 3 and 3, which both use the second of the key/value heads;
            // on 4 ranks: 2, 2, 1 and 1, of which the last two use the third
            int shared = ranks == 2 || ranks == 4 ? 1 : 0;
            return all + 2L * 2 * shared * 4 * 24 * Short.BYTES;
        }
    }

    @Test
    public void aRankReadsTheBytesOfItsShard() throws Exception {
        try (NDManager manager = NDManager.newBaseManager();
                WeightFiles files =
                        WeightFiles.open(SmallModels.file("model.safetensors.index.json"))) {
            Shape shape = new Shape(24, 26);
            SlicedInitializer source =
                    SmallModels.source(files, "w = model.layers.0.mlp.down_proj.weight", shape);
            NDArray whole = source.initialize(manager, shape, DataType.FLOAT64);
            for (ShardingStrategy strategy :
                    new ShardingStrategy[] {
                        ShardingStrategy.rowwise(), ShardingStrategy.columnwise()
                    }) {
                for (int rank = 0; rank < 4; rank++) {
                    Shape local = strategy.shardShape(shape, rank, 4);
                    NDArray expected = manager.zeros(local, DataType.FLOAT64);
                    strategy.scatterRows(whole, 0, shape, expected, rank, 4);
                    long before = files.getBytesRead();
                    NDArray shard =
                            source.initialize(
                                    manager,
                                    shape,
                                    DataType.FLOAT64,
                                    strategy.axis(shape),
                                    strategy.cut(shape, 4).getRanges(rank));
                    Assert.assertEquals(
                            files.getBytesRead() - before, local.size() * Double.BYTES, "bytes");
                    Assert.assertEquals(shard, expected);
                }
            }
        }
    }

    @Test
    public void indexesAreFoundInFolders() throws Exception {
        Path folder = Files.createTempDirectory("weights");
        Files.copy(SmallModels.file("bert.safetensors"), folder.resolve("model.safetensors"));
        try (WeightFiles files = WeightFiles.open(folder)) {
            Assert.assertNotNull(files.get("embeddings.LayerNorm.bias"));
        }
    }
}
