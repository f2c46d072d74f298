/** What a training looks like while it runs: a page of curves, and files for TensorBoard. */
@NullMarked
package io.djltp.report;

import org.jspecify.annotations.NullMarked;
