/** Tests of how files are replaced. */
package io.djltp.internal.files;
