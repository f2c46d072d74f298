/** What a training looks like while it runs: a page of curves, and files for TensorBoard. */
package io.djltp.report;
