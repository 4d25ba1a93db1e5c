package main

import "github.com/spf13/cobra"

func (d *demo) audit() error                 { return nil }
func (a *app) exportCommand() *cobra.Command { return &cobra.Command{Use: "export"} }
