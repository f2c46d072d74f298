package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.bench.BenchTable.Row;

import org.knowm.xchart.BitmapEncoder;
import org.knowm.xchart.XYChart;
import org.knowm.xchart.XYChartBuilder;
import org.knowm.xchart.style.Styler.LegendPosition;

import java.awt.Color;
import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.ToDoubleFunction;

/** A chart of time and memory against classes, both axes logarithmic. */
final class ClassesPlot {
    private static final int WIDTH = 640;
    private static final int HEIGHT = 480;

    private final List<Row> rows;

    /**
     * Prepares a chart.
     *
     * @param rows what was measured
     */
    ClassesPlot(List<Row> rows) {
        this.rows = rows;
    }

    /**
     * Draws the chart.
     *
     * @param file the PNG file
     * @throws IOException if it cannot be written
     */
    void save(Path file) throws IOException {
        System.setProperty("java.awt.headless", "true"); // there may be no screen
        List<XYChart> charts =
                List.of(
                        chart("time of a step", "seconds", rows, Row::seconds),
                        chart(
                                "peak resident memory",
                                "MB",
                                rows.stream().filter(row -> row.bytes() != null).toList(),
                                row -> row.bytes() / 1e6));
        try (OutputStream out = new BufferedOutputStream(Files.newOutputStream(file))) {
            BitmapEncoder.saveBitmap(charts, 1, 2, out, BitmapEncoder.BitmapFormat.PNG);
        } catch (LinkageError | InternalError e) {
            throw new BadInputException(
                    "--plot cannot draw without fonts (" + e + "): install fontconfig and a font",
                    e);
        }
    }

    /** Draws a line for each side, optimizer and number of ranks. */
    private static XYChart chart(
            String title, String unit, List<Row> rows, ToDoubleFunction<Row> value) {
        XYChart chart =
                new XYChartBuilder()
                        .width(WIDTH)
                        .height(HEIGHT)
                        .title(title)
                        .xAxisTitle("classes")
                        .yAxisTitle(unit)
                        .build();
        chart.getStyler().setChartBackgroundColor(Color.WHITE);
        chart.getStyler().setXAxisLogarithmic(true);
        chart.getStyler().setYAxisLogarithmic(true);
        chart.getStyler().setLegendPosition(LegendPosition.InsideNW);
        Map<String, Map<Double, Double>> lines = new LinkedHashMap<>();
        for (Row row : rows) {
            String line = "%s, %s, %s".formatted(row.side(), row.optimizer(), row.ranks());
            double classes = Double.parseDouble(row.shape().replaceAll(".*x", ""));
            lines.computeIfAbsent(line, key -> new TreeMap<>())
                    .put(classes, value.applyAsDouble(row));
        }
        lines.forEach(
                (name, line) ->
                        chart.addSeries(
                                name,
                                new ArrayList<>(line.keySet()),
                                new ArrayList<>(line.values())));
        return chart;
    }
}
