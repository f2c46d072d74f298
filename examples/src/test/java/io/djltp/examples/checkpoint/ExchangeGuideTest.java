package io.djltp.examples.checkpoint;

import ai.djl.Model;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.util.Utils;

import io.djltp.exchange.NameMapping;
import io.djltp.exchange.OnnxExport;
import io.djltp.exchange.PretrainedWeights;
import io.djltp.exchange.WeightExport;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformer;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The snippets of docs/exchange.md: they stand here word by word, and run. */
public class ExchangeGuideTest {

    private static final Path ROOT = Path.of(System.getProperty("basedir", "."), "..");

    private Path folder;

    @BeforeClass
    public void makeFolder() throws IOException {
        folder = Files.createTempDirectory("guide");
    }

    @AfterClass
    public void removeFolder() {
        Utils.deleteQuietly(folder);
    }

    private static Block llama() {
        Block layer =
                ParallelTransformerDecoderLayer.llama(
                        24, 6, 3, 26, RotaryEmbedding.builder().build(), 1e-5f);
        return new SequentialBlock()
                .add(
                        VocabParallelEmbedding.builder()
                                .setVocabularySize(13)
                                .setEmbeddingSize(24)
                                .build())
                .add(new ParallelTransformer(List.of(layer), RmsNorm.builder().build()))
                .add(ColumnParallelLinear.builder().setUnits(13).optBias(false).build());
    }

    @Test
    public void writesAndReads() throws Exception {
        try (Model model = Model.newInstance("written")) {
            model.setBlock(llama());
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, new Shape(2, 5));
            WeightExport.builder()
                    .setMapping(NameMapping.llama(6, 3))
                    .optDataType(DataType.BFLOAT16)
                    .optFileBytes(
                            5_000_000_000L) // then model-00001-of-00002.safetensors and an index
                    .build()
                    .write(model.getBlock(), folder);
        }
        ParallelConfig ranks =
                ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(3).build();
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss());
        try (Model model = Model.newInstance("read")) {
            model.setBlock(llama());
            try (Trainer trainer = new ParallelTrainer(model, config, ranks)) {
                try (PretrainedWeights weights =
                        PretrainedWeights.builder()
                                .setPath(folder) // model.safetensors, or its parts with their index
                                .setMapping(NameMapping.llama(6, 3)) // query heads, key/value heads
                                .build()) {
                    weights.assign(
                            model,
                            new Shape(2, 5)); // reads headers: what does not fit is said here
                    trainer.initialize(new Shape(2, 5)); // each rank reads its shards
                }
                Assert.assertTrue(model.getBlock().isInitialized());
            }
        }
    }

    @Test
    public void writesOnnx() throws Exception {
        Path file = folder.resolve("head.onnx");
        try (Model model = Model.newInstance("head")) {
            model.setBlock(Linear.builder().setUnits(7).build());
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, new Shape(1, 4));
            OnnxExport.builder()
                    .setInput("features", DataType.FLOAT32, new Shape(-1, 4))
                    .optOutput("logits")
                    .build()
                    .write(model, file);
        }
        Assert.assertTrue(Files.size(file) > 4 * (7 * 4 + 7));
    }

    /** Comments at the end of a line may be broken differently here. */
    @Test
    public void theGuideHasTheseSnippets() throws IOException {
        String guide = Files.readString(ROOT.resolve("docs/exchange.md"));
        Path own =
                ROOT.resolve(
                        "examples/src/test/java/"
                                + getClass().getName().replace('.', '/')
                                + ".java");
        String source = normalized(Files.readString(own));
        Matcher snippets = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL).matcher(guide);
        int count = 0;
        while (snippets.find()) {
            String snippet = normalized(snippets.group(1)).replaceFirst("\\}$", "");
            Assert.assertTrue(source.contains(snippet), snippets.group(1));
            count++;
        }
        Assert.assertEquals(count, 3);
    }

    private static String normalized(String code) {
        return code.replaceAll("//[^\n]*", "").replaceAll("\\s+", "");
    }
}
